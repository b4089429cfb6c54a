# RabbitMQ 3.10, of Debian 12: the oldest that is supported.
variable=SETTLE_RABBIT_310_URL suite=bookworm port=21310
source "$scripts/services/kinds/rabbitmq.sh"
