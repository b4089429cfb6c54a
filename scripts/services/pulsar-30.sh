# Pulsar 3.0: the oldest that is supported.
variable=SETTLE_PULSAR_30_URL version=3.0.2 port=21680
source "$scripts/services/kinds/pulsar.sh"
