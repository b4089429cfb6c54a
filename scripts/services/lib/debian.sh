# Services from Debian packages. Each Debian release lives in a chroot of its own under the cache, so that nothing is
# installed on the machine itself but debootstrap, nothing starts by itself, and one rm -rf undoes it.
#
# Every command in a chroot runs in a private mount namespace: its mounts end with the process, and no clean-up can
# reach the machine's /dev. $home, the folder of the service at hand, is /srv inside.

# packages PACKAGE... installs packages on the machine itself: tools only, none that starts a service.
packages() {
  say "installing on this machine: $*"
  lists
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$cache/apt.log" 2>&1 ||
    die "apt-get install $* failed; see $cache/apt.log"
}

# lists fetches apt's lists: on a bare machine there are none.
lists() { apt-get update >>"$cache/apt.log" 2>&1 || say "apt-get update failed (see $cache/apt.log); going on with the lists that are there"; }

# mirror prints the address of the Debian archive that apt on this machine uses.
mirror() {
  local site=${SETTLE_DEBIAN_MIRROR:-}
  [[ -n $site ]] || site=$(archives)
  [[ -n $site ]] || { lists && site=$(archives); }
  [[ -n $site ]] || die "no Debian archive in apt's sources; set SETTLE_DEBIAN_MIRROR to the address of one"
  echo "$site"
}

# archives prints the first of apt's sources that is Debian's archive; nothing while apt has no lists.
archives() { apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 -E '/debian/?$'; }

# chroot_made SUITE makes the chroot of a Debian release, once. A half made one is thrown away.
chroot_made() {
  local root=$cache/$1
  [[ ! -d $root ]] || return 0
  command -v debootstrap >/dev/null || packages debootstrap
  say "making a chroot of Debian $1 in $root (about a minute)"
  rm -rf --one-file-system "$root.partial"
  unshare -m --propagation private \
    debootstrap --variant=minbase --include=ca-certificates "$1" "$root.partial" "$(mirror)" >"$cache/$1.log" 2>&1 ||
    die "debootstrap of Debian $1 failed; see $cache/$1.log"
  printf '#!/bin/sh\nexit 101\n' >"$root.partial/usr/sbin/policy-rc.d" && chmod 755 "$root.partial/usr/sbin/policy-rc.d"
  printf '127.0.0.1 localhost\n' >"$root.partial/etc/hosts"
  # The cache can be made again: syncing every file to disk would only be slow. A frozen mirror may be past its date.
  echo force-unsafe-io >"$root.partial/etc/dpkg/dpkg.cfg.d/settle"
  echo 'Acquire::Check-Valid-Until "false";' >"$root.partial/etc/apt/apt.conf.d/settle"
  chmod 755 "$root.partial" && mv "$root.partial" "$root"
}

# chroot_packages SUITE PACKAGE... installs packages in the chroot, those it does not have yet.
chroot_packages() {
  local suite=$1 package missing=()
  shift
  chroot_made "$suite"
  for package in "$@"; do
    enter "$suite" dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "installing in the chroot of Debian $suite: ${missing[*]}"
  cp /etc/resolv.conf "$cache/$suite/etc/resolv.conf"
  enter "$suite" sh -c 'dpkg --configure -a && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" && apt-get clean' sh "${missing[@]}" \
    >>"$cache/$suite.log" 2>&1 || die "apt-get install ${missing[*]} failed in the chroot of Debian $suite; see $cache/$suite.log"
}

# enter SUITE COMMAND... runs a command in the chroot, as root.
enter() {
  inside "$1"
  "${inside[@]}" "${@:2}"
}

# inside SUITE puts into the array of that name what goes before a command to run it in the chroot. Each part replaces
# the one before it, so the process id stays that of the command.
inside() {
  # shellcheck disable=SC2016 # the inner shell expands these
  inside=(unshare -m --propagation private bash -c '
    root=$1 home=$2 && shift 2
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/run" &&
      mount --bind "$home" "$root/srv" && exec chroot "$root" "$@"' inside "$cache/$1" "$home")
}
