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
# the foreground. A shell waits for it: where nobody else does, a dead server would stay as a zombie and look alive to
# its successor. Descriptors above 2 are closed: a lock of the caller must not live on in a service.
spawn() {
  local label=$1 pid= deadline=$((SECONDS + 10))
  shift
  rm -f "$home/$label.pid"
  (
    for fd in "/proc/$BASHPID/fd"/*; do
      fd=${fd##*/}
      ((fd > 2)) && eval "exec $fd>&-"
    done
    # shellcheck disable=SC2016 # the inner shell expands these
    exec setsid bash -c 'file=$1 && shift && { "$@" & } && echo "$!" >"$file.new" && mv "$file.new" "$file" && wait' \
      spawn "$home/$label.pid" "$@" </dev/null >"$home/$label.log" 2>&1
  ) &
  until read -r pid 2>/dev/null <"$home/$label.pid"; do
    ((SECONDS < deadline)) || die "$name: $label could not be started; see $home/$label.log"
    sleep 0.01
  done
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

# family PID prints this process and all below it, each with its start time. A server's children may be in sessions of
# their own, so a signal to a process group would not reach them.
family() {
  # shellcheck disable=SC2002 # a process may end while its file is read: cat goes on with the next
  cat /proc/[0-9]*/stat 2>/dev/null | sed -E 's/^([0-9]+) \(.*\) . ([0-9]+) (([0-9-]+ ){17})([0-9]+) .*/\1 \2 \5/' | awk -v root="$1" '
    { parent[$1] = $2; start[$1] = $3 }
    END { for (pid in parent) { for (at = pid; at > 1 && at != root; at = parent[at]); if (at == root) print pid, start[pid] } }'
}

# gone PID START: that process has ended and nothing of it is left. Not started_at: the first thread of a server may be
# a zombie while the others still hold its ports.
gone() { [[ $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20) != "$2" ]]; }

# bury SECONDS waits until every process on standard input (lines of PID START) is gone; those that are not after so
# many seconds are killed. Orphans that nobody waits for stay zombies; they hold nothing and are left after a second.
bury() {
  local deadline=$((SECONDS + $1)) pid start
  while read -r pid start; do
    until gone "$pid" "$start"; do
      ((SECONDS <= deadline)) || kill -s KILL "$pid" 2>/dev/null
      ((SECONDS <= deadline + 1)) || started_at "$pid" >/dev/null || break
      sleep 0.02
    done
  done
}

# halt LABEL SIGNAL GRACE ends a process by SIGNAL, and by KILL what is left of its family after GRACE seconds. It
# returns when all of them are gone.
halt() {
  local pid members
  if pid=$(process_id "$1"); then
    members=$(family "$pid")
    kill -s "$2" "$pid" 2>/dev/null
    bury "$3" <<<"$members"
  fi
  rm -f "$home/$1.pid"
}

# kill_hard LABEL ends a process and its family as a crash would, and returns when they are gone. The process is
# stopped first, so that it makes no child that nobody knows of.
kill_hard() {
  local pid members
  pid=$(process_id "$1") || die "$name: $1 does not run"
  kill -s STOP "$pid"
  members=$(family "$pid")
  cut -d ' ' -f 1 <<<"$members" | xargs kill -s KILL 2>/dev/null
  bury 0 <<<"$members"
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
