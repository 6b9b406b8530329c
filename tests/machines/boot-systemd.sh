#!/bin/bash
# A real systemd, booted as PID 1 of private namespaces over a throw-away overlay of this machine's
# own root. Needs root and the distribution's systemd and util-linux: no container engine, no image.
#
#   boot-systemd.sh hold STATE    keep the disk of one machine; boot it once per line on stdin
#   boot-systemd.sh init ...      what `hold` runs as PID 1 of each boot; not for people
#
# A line on stdin is the value of `container=` for that boot (what systemd-detect-virt will say).
# STATE holds the orders of tests/machines/systemd.py:
#   cgroup      the cgroup v2 directory that becomes the machine's root
#   lay         one line "SOURCE<TAB>TARGET" per tree to show inside, writable but never written back
#   image       only for a machine that is not this one: its root, which is booted as it is
#   boot-id     what the machine sees as its kernel's boot id, so that a reboot looks like one
#   disk/       the writable layers; they outlive a boot, not this program
#
# Everything here vanishes with this program, however it dies: the disk is a mount of its private
# mount namespace, and PID 1 is killed when its parent is.
set -euo pipefail
self=$(readlink -f "$0")

hold() {
  local state=$1 container
  mount -t tmpfs -o mode=755,size=2g tmpfs "$state/disk"
  while read -r container; do
    # The subshell joins the cgroup before unshare makes it the root of a cgroup namespace: systemd
    # then sees a pure v2 tree that it owns.
    (
      echo "$BASHPID" >"$(cat "$state/cgroup")/cgroup.procs"
      exec setpriv --pdeathsig KILL unshare --pid --mount --cgroup --uts --ipc --net --fork \
        --kill-child --propagation private bash "$self" init "$state" "$container"
    ) </dev/null || true
    echo off >"$state/power"
  done
}

# A writable view of a tree. The owner's private modes (a checkout made with umask 077, say) must
# not keep an unprivileged service out, so the view is opened for reading.
lay() {
  local source=$1 target=$2 layer=$disk/lay/${2//\//-}
  mkdir -p "$layer/up" "$layer/work" "$root$target"
  mount -t overlay overlay -o "lowerdir=$source,upperdir=$layer/up,workdir=$layer/work" "$root$target"
  chmod a+rx "$root$target"
}

# What does not change from boot to boot is written once, so that what a test enables stays enabled.
first_boot() {
  local etc=$root/etc/systemd/system lib=$root/usr/lib/systemd/system unit
  mkdir -p "$root"/etc/systemd/{journald,system}.conf.d
  printf '[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\nRateLimitBurst=0\n' \
    >"$root/etc/systemd/journald.conf.d/99-test.conf"
  # The host's own services have no place here, and the targets that pull in the hardware's set-up
  # are emptied: default dependencies then cost nothing, and a boot takes half a second.
  rm -rf "$etc"/*.wants "$etc"/*.requires "$lib"/{multi-user,sysinit,sockets,timers,graphical}.target.wants
  for unit in sysinit sockets timers paths local-fs swap; do
    printf '[Unit]\nDescription=%s, emptied for tests\nDefaultDependencies=no\n' "$unit" >"$etc/$unit.target"
  done
  mkdir -p "$etc"/{sysinit,sockets}.target.wants
  for unit in systemd-journald.service systemd-tmpfiles-setup.service systemd-user-sessions.service; do
    ln -s "/usr/lib/systemd/system/$unit" "$etc/sysinit.target.wants/$unit"
  done
  for unit in systemd-journald.socket systemd-journald-dev-log.socket; do
    ln -s "/usr/lib/systemd/system/$unit" "$etc/sockets.target.wants/$unit"
  done
  for unit in systemd-journald-audit.socket systemd-remount-fs.service tmp.mount systemd-networkd-wait-online.service \
    getty.target systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-random-seed.service; do
    ln -sf /dev/null "$etc/$unit"
  done
  # Python may live below a private home; the view, not the host, is opened for passing through.
  chmod a+x "$root/root"
}

init() {
  local state=$1 container=$2 knob device source target
  disk=$state/disk root=$state/root
  if [ -e "$state/image" ]; then
    mount --bind "$(cat "$state/image")" "$root"
    touch "$disk/formatted"
  else
    mkdir -p "$disk"/{up,work}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/up,workdir=$disk/work" "$root"
    mkdir -p "$root"/{proc,sys,dev,run,tmp}
  fi
  mount -t proc proc "$root/proc"
  mount --bind "$state/boot-id" "$root/proc/sys/kernel/random/boot_id"
  for knob in sys sysrq-trigger irq bus; do # the kernel is the host's: its knobs are not ours
    [ -e "$root/proc/$knob" ] || continue
    mount --rbind "$root/proc/$knob" "$root/proc/$knob"
    mount -o remount,bind,ro "$root/proc/$knob"
  done
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
  cp "$state/boot-id" "$root/run/boot-id"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
  [ ! -d /dev/nvidia-caps ] || mkdir "$root/dev/nvidia-caps"
  for device in /dev/{null,zero,full,random,urandom,tty,fuse} /dev/nvidia* /dev/nvidia-caps/*; do
    # shellcheck disable=SC2046 # two words: major and minor
    [ ! -c "$device" ] || mknod -m 666 "$root$device" c $(stat -c '0x%t 0x%T' "$device")
  done
  mkdir -p "$root"/dev/{pts,shm,mqueue}
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for device in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${device%:*}" "$root/dev/${device#*:}"; done

  [ -e "$disk/formatted" ] || first_boot
  touch "$disk/formatted"
  # The libraries of a GPU's driver are often mounts of their own, which an overlay of / does not show.
  [ -e "$state/image" ] || findmnt --raw --noheadings --output TARGET | while read -r target; do
    case $target in /usr/* | /opt | /opt/*) ;; *) continue ;; esac
    if [ -d "$target" ]; then lay "$target" "$target"; else mount --bind "$target" "$root$target"; fi
  done
  while IFS=$'\t' read -r source target; do lay "$source" "$target"; done <"$state/lay"

  cd "$root"
  mkdir -p .host
  pivot_root . .host
  umount -l /.host
  mount --make-rshared / # in a container PID 1 leaves this to its creator; LoadCredential= needs it
  exec env -i container="$container" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=multi-user.target --log-level=info --show-status=no
}

"$@"
