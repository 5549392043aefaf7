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
set_kernel kernel/hostname firewall
find_nic 52:54:00:1c:3f:10; nic0=$found
find_nic 52:54:00:1c:3f:11; nic1=$found
find_nic 52:54:00:1c:3f:12; nic2=$found
/sbin/ip -batch - <<END
link set dev lo up
link set dev $nic0 name rampart0
link set dev $nic1 name rampart1
link set dev $nic2 name rampart2
link set dev rampart0 name mgmt mtu 1500
link set dev rampart1 name inside mtu 1500
link set dev rampart2 name outside mtu 9000
address add 10.254.3.19/28 dev mgmt
link set dev mgmt up
END
set_kernel net/ipv4/conf/mgmt/rp_filter 0
set_kernel net/ipv4/conf/inside/rp_filter 0
set_kernel net/ipv4/conf/outside/rp_filter 0
# inside
ethtool -L inside combined 2
ethtool -K inside gro off gso off tso off lro off rx off tx off >/dev/null 2>&1 || :
# outside
ethtool -L outside combined 2
/sbin/ip -batch - <<END
address replace 10.77.1.2/24 dev inside
link set dev inside up
neighbour replace 10.77.1.1 lladdr 52:54:00:1c:3f:01 dev inside nud permanent
neighbour replace 10.77.1.3 lladdr 52:54:00:1c:3f:01 dev inside nud permanent
address replace 10.77.2.1/24 dev outside
link set dev outside up
neighbour replace 10.77.2.2 lladdr 52:54:00:1c:3f:22 dev outside nud permanent
neighbour replace 10.77.2.3 lladdr 52:54:00:1c:3f:22 dev outside nud permanent
END
set_kernel net/ipv4/ip_forward 1
