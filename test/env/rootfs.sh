# shellcheck shell=bash
# Sourced by ns-systemd and vm after lib.sh: builds and caches the one Debian
# root file system that both boot, and names an instance's files.
#
#   TESTENV_CACHE           build output and run state (default
#                           ${XDG_CACHE_HOME:-$HOME/.cache}/conmonrs-testenv; .cache/testenv
#                           of this repository where there is no home directory)
#   TESTENV_SUITE           Debian suite of the guest: bookworm (default), trixie
#   TESTENV_MIRROR          Debian mirror (default: mmdebstrap's)
#   TESTENV_EXTRA_PACKAGES  more guest packages, comma-separated
#   TESTENV_NAME            instance name, to run several side by side (default "default")

SUITE=${TESTENV_SUITE:-bookworm}
INSTANCE=${TESTENV_NAME:-default}
case $INSTANCE in
*[!A-Za-z0-9_.-]* | .* | '') die "bad TESTENV_NAME: $INSTANCE" ;;
esac

default_cache() {
	if [ -n "${XDG_CACHE_HOME:-}" ]; then
		echo "$XDG_CACHE_HOME/conmonrs-testenv"
	elif [ -n "${HOME:-}" ] && [ -d "$HOME" ] && [ -w "$HOME" ]; then
		echo "$HOME/.cache/conmonrs-testenv"
	else
		echo "$REPO_ROOT/.cache/testenv"
	fi
}
CACHE=$(realpath -m -- "${TESTENV_CACHE:-$(default_cache)}")

GUEST_PACKAGES=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,systemd-coredump,libdw1,kmod,crun,runc,busybox-static,iproute2,procps,util-linux,dropbear-bin
[ -z "${TESTENV_EXTRA_PACKAGES:-}" ] || GUEST_PACKAGES=$GUEST_PACKAGES,$TESTENV_EXTRA_PACKAGES

# configure_rootfs DIR: settings that both environments share.
configure_rootfs() {
	local root=$1 unit
	echo testenv >"$root/etc/hostname"
	printf '127.0.0.1 localhost testenv\n' >"$root/etc/hosts"
	tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
	: >"$root/etc/fstab"
	rm -f "$root/etc/resolv.conf"
	: >"$root/etc/resolv.conf"
	# /var/log/journal makes journald keep its entries on disk.
	mkdir -p "$root/var/log/journal" "$root/root/.ssh" "$root/etc/dropbear" "$root/host"
	chmod 700 "$root/root/.ssh"
	ssh-keygen -q -t ed25519 -N '' -C testenv -f "$root/../key"
	cp "$root/../key.pub" "$root/root/.ssh/authorized_keys"
	chroot "$root" dropbearkey -t ed25519 -f /etc/dropbear/host_key >/dev/null 2>&1
	chroot "$root" useradd -m -s /bin/bash testuser # for tests without privileges

	# The command channel of the VM: its address from the kernel command line, then ssh.
	cat >"$root/usr/local/sbin/testenv-setup" <<-'S'
		#!/bin/sh
		ip link set lo up
		for word in $(cat /proc/cmdline); do
			case $word in testenv.ip=*) ip addr add "${word#*=}" dev eth0; ip link set eth0 up ;; esac
		done
	S
	chmod 755 "$root/usr/local/sbin/testenv-setup"
	cat >"$root/etc/systemd/system/testenv-setup.service" <<-'S'
		[Unit]
		Description=test environment network
		DefaultDependencies=no
		ConditionVirtualization=!container
		Before=sysinit.target
		[Service]
		Type=oneshot
		RemainAfterExit=yes
		ExecStart=/usr/local/sbin/testenv-setup
		[Install]
		WantedBy=sysinit.target
	S
	cat >"$root/etc/systemd/system/testenv-ssh.service" <<-'S'
		[Unit]
		Description=test environment command channel
		ConditionVirtualization=!container
		[Service]
		ExecStart=/usr/sbin/dropbear -F -E -s -r /etc/dropbear/host_key -p 22
		KillMode=process
		Restart=on-failure
		[Install]
		WantedBy=multi-user.target
	S
	# The unit that commands run in the namespace environment belong to (see ns-systemd).
	cat >"$root/etc/systemd/system/testenv-run.service" <<-'S'
		[Unit]
		Description=test environment commands
		ConditionVirtualization=container
		[Service]
		ExecStart=/bin/sleep infinity
		Delegate=yes
		[Install]
		WantedBy=multi-user.target
	S
	chroot "$root" systemctl -q enable testenv-setup testenv-ssh testenv-run 2>/dev/null
	chroot "$root" systemctl -q set-default multi-user.target 2>/dev/null
	# No udev in the guest: units that would wait for a device are masked, and so
	# are the timers, which would do work in the middle of a test.
	for unit in getty@tty1.service serial-getty@ttyS0.service console-getty.service \
		apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
		e2scrub_reap.service fstrim.timer systemd-pstore.service systemd-tmpfiles-clean.timer; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
}

# Fetches the suite's cloud kernel package, of which modules and vmlinuz are kept. It runs
# as an mmdebstrap hook, so that apt uses the guest's sources and keys.
# shellcheck disable=SC2016 # expanded by the hook's shell
KERNEL_HOOK='set -e; r=$1; t=$r/../kernel; mkdir -p "$t"; cd "$t"
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
p=$(apt-cache depends linux-image-cloud-$(dpkg --print-architecture) | sed -n "s/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p" | head -n1)
apt-get -qq -o APT::Sandbox::User=root download "$p"
dpkg-deb -x "$p"_*.deb x; v=${p#linux-image-}
mkdir -p "$r/usr/lib/modules"
if [ -d "x/usr/lib/modules/$v" ]; then mv "x/usr/lib/modules/$v" "$r/usr/lib/modules/"; else mv "x/lib/modules/$v" "$r/usr/lib/modules/"; fi
mv "x/boot/vmlinuz-$v" vmlinuz; rm -rf x *.deb; echo "$v" >version; chroot "$r" depmod "$v"'

# The cache key follows the recipe: an edited one is built anew.
IMAGE=$CACHE/$SUITE-$(echo "$GUEST_PACKAGES $(declare -f configure_rootfs) $KERNEL_HOOK" | sha256sum | cut -c1-12)
ROOTFS=$IMAGE/rootfs

run_mmdebstrap() { # DIR
	mmdebstrap --quiet --mode=root --variant=minbase --include="$GUEST_PACKAGES" \
		--aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		--customize-hook="$KERNEL_HOOK" \
		"$SUITE" "$1" ${TESTENV_MIRROR:+"$TESTENV_MIRROR"}
}

build_rootfs() {
	[ -e "$IMAGE/.rootfs-done" ] && return 0
	need_commands mmdebstrap mmdebstrap ssh-keygen openssh-client flock util-linux
	# Ubuntu has mmdebstrap but not the keys of the suites that are built here.
	[ "$(package_family)" != deb ] || [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] ||
		install_packages debian-archive-keyring
	mkdir -p "$CACHE"
	exec 8>"$CACHE/build.lock"
	flock 8
	if [ ! -e "$IMAGE/.rootfs-done" ]; then
		local start staging
		start=$(now_ms)
		staging=$(mktemp -d "$CACHE/build.XXXXXX")
		# shellcheck disable=SC2064 # the directory's name of now
		trap "rm -rf '$staging'" EXIT
		say "building the $SUITE root file system (once; some 20 s and 270 MB)"
		run_mmdebstrap "$staging/rootfs" >"$CACHE/build.log" 2>&1 || {
			tail -n 20 "$CACHE/build.log" >&2
			die "mmdebstrap failed: $CACHE/build.log"
		}
		configure_rootfs "$staging/rootfs"
		chmod 755 "$staging"
		touch "$staging/.rootfs-done"
		rm -rf "$IMAGE"
		mv "$staging" "$IMAGE"
		trap - EXIT
		say "root file system ready in $(($(now_ms) - start)) ms: $ROOTFS"
	fi
	flock -u 8
	exec 8>&-
}
