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
set_kernel kernel/hostname receiver
find_nic 52:54:00:1c:3f:20; nic0=$found
find_nic 52:54:00:1c:3f:22; nic1=$found
/sbin/ip -batch - <<END
link set dev lo up
link set dev $nic0 name rampart0
link set dev $nic1 name rampart1
link set dev rampart0 name mgmt mtu 1500
link set dev rampart1 name outside mtu 9000
address add 10.254.3.20/28 dev mgmt
link set dev mgmt up
END
set_kernel net/ipv4/conf/mgmt/rp_filter 0
set_kernel net/ipv4/conf/outside/rp_filter 0
# outside
/sbin/ip -batch - <<END
address replace 10.77.2.2/24 dev outside
link set dev outside up
neighbour replace 10.77.2.1 lladdr 52:54:00:1c:3f:12 dev outside nud permanent
route replace 10.77.1.0/24 via 10.77.2.1
END
