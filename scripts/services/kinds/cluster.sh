# A service made of others: every verb goes to its members, side by side where they wait for each other. The service's
# file sets: members, mapper, and what its nodes are (kinds/rabbitmq.sh).

# each VERB does it to every member and fails if one fails.
each() {
  local verb=$1 member jobs=() job result=0
  for member in $members; do
    (load "$member" && "service_$verb") & jobs+=("$!")
  done
  for job in "${jobs[@]}"; do wait "$job" || result=1; done
  return "$result"
}

service_install() { chroot_packages "$suite" rabbitmq-server; }

service_start() {
  running epmd || start_mapper
  each start || die "not every node of $name started: see above"
  wait_for 60 epmd formed
}

# formed: the first member has heard of all.
formed() { service_ctl await_online_nodes "$(wc -w <<<"$members")" --timeout 5; }

service_stop() {
  each stop
  halt epmd TERM 5
}

service_restart() { each restart && wait_for 60 epmd formed; }

service_kill() { each kill; }

service_runs() { each runs; }

service_ctl() { (load "${members%% *}" && service_ctl "$@"); }

service_env() {
  local member urls=()
  for member in $members; do urls+=("$(load "$member" && service_env | head -n 1 | cut -d = -f 2-)"); done
  (IFS=, && echo "$variable=${urls[*]}")
  for member in $members; do (load "$member" && service_env); done
}
