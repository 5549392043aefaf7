set -eu
set_kernel() { echo "$2" >"/proc/sys/$1"; }
find_nic() {
	for dir in /sys/class/net/*; do
		read -r mac <"$dir/address"
		found=${dir##*/}
		[ "$mac" != "$1" ] || return 0
	done
	echo "no network interface has the address $1" >&2
	return 1
}
for conf in all default; do
	set_kernel "net/ipv4/conf/$conf/rp_filter" 0
	[ ! -d /proc/sys/net/ipv6 ] || set_kernel "net/ipv6/conf/$conf/disable_ipv6" 1
done
set_kernel kernel/hostname sender
find_nic 52:54:00:1c:3f:00; nic0=$found
find_nic 52:54:00:1c:3f:01; nic1=$found
/sbin/ip -batch - <<END
link set dev lo up
link set dev $nic0 name rampart0
link set dev $nic1 name rampart1
link set dev rampart0 name mgmt mtu 1500
link set dev rampart1 name inside mtu 1500
address add 10.254.3.18/28 dev mgmt
link set dev mgmt up
END
set_kernel net/ipv4/conf/mgmt/rp_filter 0
set_kernel net/ipv4/conf/inside/rp_filter 0
# inside
ethtool -K inside gro off gso off tso off lro off rx off tx off >/dev/null 2>&1 || :
/sbin/ip -batch - <<END
address replace 10.77.1.1/24 dev inside
link set dev inside up
neighbour replace 10.77.1.2 lladdr 52:54:00:1c:3f:11 dev inside nud permanent
route replace 10.77.2.0/24 via 10.77.1.2
END
