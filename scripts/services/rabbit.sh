# RabbitMQ, the newest in Debian sid: 4.3 when this was written.
variable=SETTLE_RABBIT_URL suite=sid port=21430
source "$scripts/services/kinds/rabbitmq.sh"
