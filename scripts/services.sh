#!/usr/bin/env bash
# The real services that tests run against, on 127.0.0.1, on ports of their own. `make help` names the usual ways in;
# this is what they call:
#
#   services.sh list                      every service and the variable that carries its address
#   services.sh install SERVICE...        install only: for an image, or before the network is cut
#   services.sh keep SERVICE...           install, start and leave running
#   services.sh with SERVICE... -- COMMAND   run a command with its services; what it started ends with it
#   services.sh stop [SERVICE...]         stop these, or all
#   services.sh clean                     stop all and delete everything that was installed or stored
#   services.sh env|status|start|restart|kill|ctl SERVICE...   for people and for fault tests
#
# A service is one file in services/, with the same functions in each: service_install, service_start, service_stop,
# service_restart, service_kill, service_runs, service_ctl, service_env. One whose variable is set in the environment is
# somebody else's: it is used as it is and never touched. Otherwise it comes from a Docker engine where one answers
# (SETTLE_DOCKER=no passes it by), else from Debian packages as root. Everything that is installed or stored lies under
# $SETTLE_CACHE, by default ~/.cache/settle.
set -u -o pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SETTLE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/settle}
source "$scripts/services/lib/process.sh"
source "$scripts/services/lib/debian.sh"

say() { echo "services: $*" >&2; }
die() { say "$*" && exit 1; }

every() { for file in "$scripts"/services/*.sh; do basename "$file" .sh; done; }

# load SERVICE reads its file; run it in a subshell.
load() {
  name=$1 home=$cache/services/$1
  unset -v variable suite port members cluster mapper peers token # a member is loaded inside its cluster
  [[ -f $scripts/services/$1.sh ]] || die "there is no service \"$1\"; there are: $(every | tr '\n' ' ')"
  # shellcheck disable=SC1090
  source "$scripts/services/$1.sh"
  # shellcheck disable=SC2153 # the service's file sets variable
  given=${!variable:-}
  mkdir -p "$home" && chmod 755 "$home"
  [[ $docker == no ]] || source "$scripts/services/lib/docker.sh"
}

# possible: this machine can provide services in one of our two ways; if not, it says what is missing.
possible() {
  [[ $docker == no ]] || return 0
  [[ $(id -u) == 0 ]] && grep -qE '^ID(_LIKE)?=.*debian' /etc/os-release 2>/dev/null && command -v apt-get >/dev/null ||
    die "cannot provide $name: no Docker engine answers (docker info), and this is not root on Debian. Provide one of them, or set $variable to the address of a running server"
  unshare -m true 2>/dev/null ||
    die "cannot provide $name: this container may not mount. Give it CAP_SYS_ADMIN, or set $variable to the address of a running server"
}

# installed SERVICE installs it where it is not, unless it is given; one at a time.
installed() (
  load "$1"
  [[ -z $given ]] || exit 0
  possible
  exec {lock}>"$cache/lock" && flock "$lock"
  service_install
)

# up SERVICE installs and starts it, unless it runs or is given; returns when it is ready. One at a time a service.
up() (
  installed "$1" || exit 1
  load "$1"
  [[ -z $given ]] || exit 0
  exec {lock}>"$home/lock" && flock "$lock"
  service_start
)

# down SERVICE stops it, if it was started here.
down() (
  load "$1"
  exec {lock}>"$home/lock" && flock "$lock"
  rm -f "$home/keep"
  service_stop
)

# all VERB SERVICE... runs the verb for each side by side and fails if one fails.
all() {
  local verb=$1 name jobs=() job result=0
  shift
  for name in "$@"; do
    "$verb" "$name" & jobs+=("$!")
  done
  for job in "${jobs[@]}"; do wait "$job" || result=1; done
  return "$result"
}

# exported SERVICE prints what to put into the environment, ready for a shell.
exported() (
  load "$1"
  [[ -z $given ]] || exit 0
  service_env | while IFS='=' read -r key value; do printf "export %s='%s'\n" "$key" "$value"; done
)

status() (
  load "$1"
  if [[ -n $given ]]; then
    echo "$name: given by $variable"
  elif service_runs; then
    echo "$name: runs$([[ -e $home/keep ]] && echo ', until it is stopped')"
  else
    echo "$name: does not run"
  fi
)

# ours SERVICE VERB [ARGUMENT...] does to a service what a fault test asks for; only to one that was started here.
ours() (
  load "$1"
  [[ -z $given || $(service_env | head -n 1) == "$variable=$given" ]] ||
    die "$name is given by $variable and was not started here: it cannot be restarted or killed from here"
  local verb=$2
  shift 2
  "service_$verb" "$@"
)

# with SERVICE... -- COMMAND... A service that was started to be kept goes on; another is stopped when nobody uses it any
# more. Whoever uses a service holds a shared lock on its file `users`; the last one out finds that it can have it alone.
with() {
  local names=() name lines
  declare -A users
  while [[ $1 != -- ]]; do names+=("$1") && shift; done
  shift
  for name in "${names[@]}"; do
    mkdir -p "$cache/services/$name"
    exec {fd}>>"$cache/services/$name/users" && flock -s "$fd"
    users[$name]=$fd
  done
  trap leave EXIT
  trap 'exit 130' INT TERM
  leave() {
    local name fd
    for name in "${names[@]}"; do
      fd=${users[$name]}
      # Upgrading a shared lock without waiting fails while somebody else has it.
      if [[ ! -e $cache/services/$name/keep ]] && flock -xn "$fd"; then down "$name"; fi
      exec {fd}>&-
    done
  }
  all up "${names[@]}" || die "not every service is up: see above"
  for name in "${names[@]}"; do
    lines=$(exported "$name") || exit 1
    eval "$lines"
  done
  "$@"
  exit
}

verb=${1:-list}
shift || true
docker=no
[[ ${SETTLE_DOCKER:-} != no ]] && command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1 && docker=yes
mkdir -p "$cache/services" && chmod 755 "$cache" || die "cannot write to $cache; set SETTLE_CACHE to a folder that can be written"
case $verb in
install) all installed "$@" ;;
list) for name in $(every); do (load "$name" && echo "$name $variable"); done ;;
keep)
  all up "$@" || die "not every service is up: see above"
  for name in "$@"; do touch "$cache/services/$name/keep" && exported "$name"; done
  ;;
with) with "$@" ;;
stop) all down ${@:-$(every)} ;;
env) for name in "$@"; do exported "$name"; done ;;
status) for name in ${@:-$(every)}; do status "$name"; done ;;
start | restart | kill) ours "$1" "$verb" ;;
ctl) ours "$1" ctl "${@:2}" ;;
clean)
  all down $(every) || die "not every service stopped: nothing was deleted"
  rm -rf --one-file-system "$cache"
  ;;
*) die "there is no verb \"$verb\"; the first lines of $0 name them" ;;
esac
