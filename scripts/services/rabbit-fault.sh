# A second RabbitMQ of the newest kind, for the tests that restart it, kill it or raise its alarms: no other test is hurt.
variable=SETTLE_RABBIT_FAULT_URL suite=sid port=21440
source "$scripts/services/kinds/rabbitmq.sh"
