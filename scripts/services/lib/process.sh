# Processes of a service, tracked by pid files in its folder ($home). A pid file holds a process id and the kernel's
# start time of that process, so that a number somebody else got after a reboot is never taken for ours. Nothing here
# finds a process by its name.

# started_at PID prints the kernel's start time of a process that runs; fails for one that is gone or a zombie.
started_at() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The second field is the program's name in parentheses and may hold anything; the third is the state.
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} != Z ]] && echo "${stat[19]}"
}

# process_id LABEL prints the id of the process that was spawned under this label, if it still runs.
process_id() {
  local pid start
  read -r pid start 2>/dev/null <"$home/$1.pid" || return 1
  [[ $(started_at "$pid") == "$start" ]] && echo "$pid"
}

# running LABEL...: every one of these runs.
running() {
  local label
  for label in "$@"; do process_id "$label" >/dev/null || return 1; done
}

# spawn LABEL COMMAND... runs a command in a session of its own, output to $home/LABEL.log. The command must stay in
# the foreground. Descriptors above 2 are closed: a lock of the caller must not live on in a service.
spawn() {
  local label=$1 pid
  shift
  (
    for fd in "/proc/$BASHPID/fd"/*; do
      fd=${fd##*/}
      ((fd > 2)) && eval "exec $fd>&-"
    done
    exec setsid "$@" </dev/null >"$home/$label.log" 2>&1
  ) &
  pid=$!
  echo "$pid $(started_at "$pid")" >"$home/$label.pid"
}

# wait_for SECONDS LABEL COMMAND... tries a condition until it holds; gives up early when the process has died.
wait_for() {
  local deadline=$((SECONDS + $1)) limit=$1 label=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! running "$label"; then
      tail -n 20 "$home/$label.log" >&2
      die "$name: $label ended while it was starting; its last lines stand above, all of them in $home/$label.log"
    fi
    if ((SECONDS >= deadline)); then
      tail -n 20 "$home/$label.log" >&2
      die "$name: $label was not ready after $limit seconds; its last lines stand above, all of them in $home/$label.log"
    fi
    sleep 0.1
  done
}

# gone PID START: that process has ended.
gone() { [[ $(started_at "$1") != "$2" ]]; }

# halt LABEL SIGNAL GRACE ends a process and what it left in its process group: by SIGNAL, after GRACE seconds by
# KILL. It returns when the process is gone.
halt() {
  local label=$1 signal=$2 deadline=$((SECONDS + $3)) pid start
  if pid=$(process_id "$label"); then
    start=$(started_at "$pid")
    kill -s "$signal" -- "$pid" 2>/dev/null
    until gone "$pid" "$start"; do
      ((SECONDS >= deadline)) && kill -s KILL -- "-$pid" 2>/dev/null
      sleep 0.05
    done
    kill -s KILL -- "-$pid" 2>/dev/null
  fi
  rm -f "$home/$label.pid"
}

# kill_hard LABEL ends a process and its group as a crash would, and returns when it is gone.
kill_hard() {
  local pid start
  pid=$(process_id "$1") || die "$name: $1 does not run"
  start=$(started_at "$pid")
  kill -s KILL -- "-$pid"
  until gone "$pid" "$start"; do sleep 0.02; done
  rm -f "$home/$1.pid"
}

# connects PORT: something listens on 127.0.0.1.
connects() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free PORT...: nothing listens there. A server of somebody else on our port would pass for ours.
free() {
  local port
  for port in "$@"; do
    ! connects "$port" || die "$name: port $port on 127.0.0.1 is taken by another program (a checkout with another SETTLE_CACHE?); stop it, or set $variable"
  done
}
