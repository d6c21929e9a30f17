# shellcheck shell=bash
# Sourced by the scripts of this directory: messages, package installation and
# the few process helpers they share. Nothing here runs when it is sourced.

set -euo pipefail
umask 022
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

ENV_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck disable=SC2034 # for the scripts
REPO_ROOT=$(cd "$ENV_DIR/../.." && pwd -P)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# 125 as env(1) and timeout(1) use it: the wrapper failed, not the command.
die() {
	say "$*"
	exit 125
}

now_ms() {
	local t=${EPOCHREALTIME/[.,]/}
	echo $((t / 1000))
}

require_root() { [ "$(id -u)" = 0 ] || die "needs root: $1"; }

# The leading comment of a script is its usage text.
usage_of() { sed -n '2,/^$/s/^# \{0,1\}//p' "$1"; }

# apt-get, which has two ways to fail for reasons that pass: a lock that unattended
# upgrades hold, and a mirror that does not answer.
apt_get() {
	env DEBIAN_FRONTEND=noninteractive apt-get -qq \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}

install_with_apt() {
	local try log
	log=$(mktemp)
	for try in 1 2 3; do
		# The package lists of a fresh machine are empty or old: update when the
		# first try did not work, so that a machine with good lists saves the time.
		[ "$try" = 1 ] || apt_get update >"$log" 2>&1 || sleep "$try"
		if apt_get install -y --no-install-recommends "$@" >"$log" 2>&1; then
			rm -f "$log"
			return 0
		fi
	done
	tail -n 20 "$log" >&2
	rm -f "$log"
	return 1
}

install_with_dnf() {
	local try dnf=dnf log
	command -v dnf >/dev/null || dnf=microdnf
	log=$(mktemp)
	for try in 1 2 3; do
		if "$dnf" install -y --setopt=install_weak_deps=False "$@" >"$log" 2>&1 </dev/null; then
			rm -f "$log"
			return 0
		fi
		sleep "$try"
	done
	tail -n 20 "$log" >&2
	rm -f "$log"
	return 1
}

# package_family prints deb, rpm, or nothing.
package_family() {
	if command -v apt-get >/dev/null; then
		echo deb
	elif command -v dnf >/dev/null || command -v microdnf >/dev/null; then
		echo rpm
	fi
}

# install_packages PACKAGE...: names are those of the machine's own family.
install_packages() {
	[ $# -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "missing: $*. Install them, or run this as root to have it done."
	say "installing $*"
	case $(package_family) in
	deb) install_with_apt "$@" ;;
	rpm) install_with_dnf "$@" ;;
	*) die "missing: $*. This machine has neither apt-get nor dnf: install them by hand." ;;
	esac || die "could not install $*"
}

# need_commands COMMAND PACKAGE [COMMAND PACKAGE]...: install what lacks (Debian names).
need_commands() {
	local missing=()
	while [ $# -ge 2 ]; do
		command -v "$1" >/dev/null || missing+=("$2")
		shift 2
	done
	[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

# cgroup_layout prints unified, hybrid or legacy.
cgroup_layout() {
	if [ "$(stat -f -c %T /sys/fs/cgroup 2>/dev/null)" = cgroup2fs ]; then
		echo unified
	elif grep -q ' cgroup2 ' /proc/mounts; then
		echo hybrid
	else
		echo legacy
	fi
}

# systemd's own test (sd_booted(3)).
systemd_is_init() { [ -d /run/systemd/system ]; }

# process_id PID prints "pid start-time", which names a process for good where
# the pid alone may be used again. It fails for a process that is gone or a zombie.
process_id() {
	local stat fields
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
	read -r -a fields <<<"${stat##*) }" # what follows the name, which may hold anything
	[ "${fields[0]}" != Z ] || return 1
	echo "$1 ${fields[19]}"
}

# process_alive FILE: is the process that process_id wrote into FILE still there?
process_alive() {
	local pid _
	[ -s "$1" ] && read -r pid _ <"$1" && [ "$(process_id "$pid")" = "$(cat "$1")" ]
}

# enclosing_tree prints the root of the source tree around the current directory,
# or that directory itself.
enclosing_tree() {
	local dir=$PWD best=$PWD
	while [ "$dir" != / ]; do
		[ ! -e "$dir/go.mod" ] || best=$dir
		if [ -e "$dir/.git" ] || [ -e "$dir/go.work" ]; then
			best=$dir
			break
		fi
		dir=$(dirname "$dir")
	done
	echo "$best"
}
