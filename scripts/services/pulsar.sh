# Pulsar 4.0; it asks for tokens.
variable=SETTLE_PULSAR_URL version=4.0.7 port=21660 token=yes
source "$scripts/services/kinds/pulsar.sh"
