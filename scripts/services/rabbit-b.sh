# A node of rabbit-cluster: started with it, killed and started again by itself.
variable=SETTLE_RABBIT_B_URL suite=sid port=21453
cluster=rabbit-cluster mapper=21459 peers='rabbit-a rabbit-b rabbit-c'
source "$scripts/services/kinds/rabbitmq.sh"
