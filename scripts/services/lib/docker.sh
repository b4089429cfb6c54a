# Services as containers (compose.yaml), where a Docker engine answers. Read after a service's own file, it puts other
# functions in the place of those that work on Debian; addresses and variables stay.

compose() { docker compose -f "$scripts/../compose.yaml" "$@"; }

# The containers of a service: its own, or its members'. A name is a word, so the list may fall apart at spaces.
containers=${members:-$name}

service_install() { :; }

# shellcheck disable=SC2086
service_start() {
  compose up -d --wait $containers >"$home/docker.log" 2>&1 || die "$name: its container did not come up; see $home/docker.log"
  [[ -z ${token:-} ]] || fetch_tokens || die "$name: its tokens could not be read"
}

fetch_tokens() {
  compose exec -T "$name" cat data/token >"$home/token" && compose exec -T "$name" cat data/guest.token >"$home/guest.token"
}

# shellcheck disable=SC2086
service_runs() {
  local container
  for container in $containers; do
    compose ps --status running --services 2>/dev/null | grep -qx "$container" || return 1
  done
}

# shellcheck disable=SC2086
service_stop() { compose rm --stop --force --volumes $containers >"$home/docker.log" 2>&1; }

# shellcheck disable=SC2086
service_restart() { compose restart $containers >"$home/docker.log" 2>&1 && service_start; }

# shellcheck disable=SC2086
service_kill() { compose kill $containers >"$home/docker.log" 2>&1; }

service_ctl() {
  case $name in
  rabbit*) compose exec -T "${containers%% *}" rabbitmqctl "$@" ;;
  postgres*) compose exec -T "$name" psql -U settle -d settle -At "$@" ;;
  mysql) compose exec -T -e MYSQL_PWD=settle "$name" mysql -u settle -D settle -sN "$@" ;;
  mariadb) compose exec -T -e MYSQL_PWD=settle "$name" mariadb -u settle -D settle -sN "$@" ;;
  *) die "$name has no command of its own" ;;
  esac
}
