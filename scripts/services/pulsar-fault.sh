# A second Pulsar of the newest kind, for the tests that kill it: no other test is hurt.
variable=SETTLE_PULSAR_FAULT_URL version=4.0.7 port=21700
source "$scripts/services/kinds/pulsar.sh"
