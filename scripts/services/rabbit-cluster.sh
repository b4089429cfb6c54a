# Three RabbitMQ nodes of the newest kind that form one cluster: for tests in which the leader of a queue dies.
variable=SETTLE_RABBIT_CLUSTER suite=sid members='rabbit-a rabbit-b rabbit-c' mapper=21459
source "$scripts/services/kinds/rabbitmq.sh"
source "$scripts/services/kinds/cluster.sh"
