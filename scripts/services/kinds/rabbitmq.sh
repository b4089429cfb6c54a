# One RabbitMQ node from a chroot. The service's file sets: suite, port (it uses port+1 and port+2 too), and for a node
# of a cluster also cluster, mapper and peers: the service it belongs to, the port of the mapper there, the members.
# Each node, or cluster, has a port mapper (epmd) and a cookie of its own, so that it meets no other Erlang.

node=${cluster:+$name}
node=${node:-rabbit}@localhost
mapper=${mapper:-$((port + 2))}
patience=20 # seconds a node may take to stop in good order

service_install() { chroot_packages "$suite" rabbitmq-server; }

service_start() {
  [[ -n ${cluster:-} ]] || running epmd || start_mapper
  running node && return 0
  free "$port" "$((port + 1))"
  write_configuration
  inside "$suite" && as_rabbit
  spawn node "${inside[@]}" sh -c 'chown -R rabbitmq: /srv/node && exec "$@"' sh "${as_rabbit[@]}" \
    /usr/lib/rabbitmq/bin/rabbitmq-server
  wait_for 60 node answers_amqp
}

start_mapper() {
  free "$mapper"
  inside "$suite"
  spawn epmd "${inside[@]}" setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups epmd -port "$mapper" -address 127.0.0.1
  wait_for 10 epmd connects "$mapper"
}

# as_rabbit puts into the array of that name what every program of the node runs with: its user, folder, names and
# ports, and loopback only. The Erlang schedulers do not spin while idle: the machine's cores belong to the tests.
as_rabbit() {
  local loopback='-kernel inet_dist_use_interface {127,0,0,1}'
  as_rabbit=(setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups env -i
    PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/srv/node/home
    RABBITMQ_NODENAME="$node" RABBITMQ_DIST_PORT="$((port + 1))" ERL_EPMD_PORT="$mapper" ERL_EPMD_ADDRESS=127.0.0.1
    RABBITMQ_CONFIG_FILE=/srv/node/rabbitmq RABBITMQ_ENABLED_PLUGINS_FILE=/srv/node/enabled_plugins
    RABBITMQ_CONF_ENV_FILE=/srv/node/none.conf RABBITMQ_MNESIA_BASE=/srv/node/data RABBITMQ_LOG_BASE=/srv/node/log
    RABBITMQ_LOGS=- RABBITMQ_PID_FILE=/srv/node/pid RUNNING_UNDER_SYSTEMD=true # the server takes the place of its script
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$loopback +sbwt none +sbwtdcpu none +sbwtdio none"
    RABBITMQ_CTL_ERL_ARGS="$loopback")
}

write_configuration() {
  local secret=$cache/services/${cluster:-$name}/cookie n=0 peer
  mkdir -p "$home/node/home" "$home/node/data" "$home/node/log"
  # Nodes of one cluster start side by side: the first to link its cookie gives it to all.
  if [[ ! -e $secret ]]; then
    head -c 24 /dev/urandom | base64 | tr -d '/+=\n' >"$secret.$name"
    ln "$secret.$name" "$secret" 2>/dev/null
    rm -f "$secret.$name"
  fi
  install -m 400 "$secret" "$home/node/home/.erlang.cookie"
  echo '[].' >"$home/node/enabled_plugins"
  {
    echo "listeners.tcp.1 = 127.0.0.1:$port"
    if [[ -n ${cluster:-} ]]; then
      echo 'cluster_formation.peer_discovery_backend = classic_config'
      for peer in $peers; do echo "cluster_formation.classic_config.nodes.$((++n)) = $peer@localhost"; done
    fi
  } >"$home/node/rabbitmq.conf"
}

# answers_amqp: the broker answers a protocol header with the first frame of a connection (type 1), which it does only
# once it has started.
answers_amqp() (
  exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'AMQP\x00\x00\x09\x01' >&3 &&
    [[ $(timeout 2 head -c 1 <&3 | od -An -tu1) -eq 1 ]]
)

service_runs() { running node; }

service_stop() {
  halt node TERM "$patience"
  halt epmd TERM 5
}

service_restart() {
  halt node TERM "$patience"
  service_start
}

service_kill() { kill_hard node; }

# service_ctl ARGUMENT... runs rabbitmqctl on the node.
service_ctl() {
  as_rabbit
  enter "$suite" "${as_rabbit[@]}" rabbitmqctl "$@"
}

service_env() { echo "$variable=amqp://guest:guest@127.0.0.1:$port/"; }
