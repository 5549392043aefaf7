// SPDX-License-Identifier: GPL-2.0
/*
 * rtcache - a route cache for forwarded IPv4 connections
 *
 * A packet that the kernel forwards is looked up twice in the routing tables:
 * its destination, to find the way, and its source, to judge whether it may
 * have come this way (rp_filter). When connection tracking has found out which
 * connection the packet belongs to, both answers are known from the packets
 * before it. This module remembers them:
 *
 *   PRE_ROUTING, last    a flow with a valid route gets it; IPv4 input then
 *                        finds the packet routed and looks nothing up
 *   FORWARD, first       the route of a packet that had none is remembered
 *
 * A flow is one direction of a connection, and everything that the two look-ups
 * depend on: see struct rtcache_flow. Whatever is not a plain forwarded packet
 * is left alone: see rtcache_describe() and rtcache_may_keep().
 *
 * Life time. An entry owns a reference to its route and gives it back after a
 * grace period, so that what is found under RCU can be lent to a packet without
 * touching the reference count, as the kernel does with routes of its own.
 * Entries go when they are idle, when their route is no longer valid, when one
 * of their devices goes, when the cache is switched off, and with the
 * namespace. Connections come and go without telling us: an entry never
 * touches the connection it was made for, and is compared whole before use.
 *
 * See README.md for what it is for and where a flowtable serves better.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/hash.h>
#include <linux/inetdevice.h>
#include <linux/ip.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/netfilter_bridge.h>
#include <linux/netfilter_ipv4.h>
#include <linux/prandom.h>
#include <linux/proc_fs.h>
#include <linux/random.h>
#include <linux/seq_file.h>
#include <linux/skbuff.h>
#include <linux/sysctl.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include <net/dst.h>
#include <net/inet_ecn.h>
#include <net/ip.h>
#include <net/net_namespace.h>
#include <net/netfilter/nf_conntrack.h>
#include <net/netns/generic.h>
#include <net/route.h>

#define RTCACHE_WAYS 4

/* One in so many packets of an unknown flow may bring it in: a flow of two
 * packets is hardly worth an entry, and one of thousands is in at once.
 */
#define RTCACHE_ADMIT_ONE_IN 4

/* An entry that was not used for so long may be replaced by another flow. */
#define RTCACHE_REPLACE_IDLE HZ

/* An entry that was not used for so long is removed. */
#define RTCACHE_MAX_IDLE (30 * HZ)

/* A flow is routed anew after so long even if nothing seems to have changed:
 * the bound on anything that neither the validity of its route nor its key
 * covers.
 */
#define RTCACHE_MAX_AGE (10 * HZ)

#define RTCACHE_SWEEP_INTERVAL (5 * HZ)

#define RTCACHE_MIN_ENTRIES 64
#define RTCACHE_MAX_ENTRIES (1 << 20)

static unsigned int entries = 16384;
module_param(entries, uint, 0444);
MODULE_PARM_DESC(entries, "bound on the flows of one network namespace (64 to 1048576, rounded up to a power of two; default 16384)");

/* Everything that the look-ups of destination and source depend on, and which
 * connection the packet belongs to. The connection is an address that is never
 * followed. Its memory may have been given to another connection meanwhile,
 * even without a grace period, so its original tuple is here as well: routing
 * rules may ask for ports and protocol.
 */
struct rtcache_flow {
	const struct nf_conn *ct;
	__be32 orig_saddr, orig_daddr;
	__be32 saddr, daddr;		/* of the packet, after NAT */
	__be16 orig_sport, orig_dport;
	u32 mark;
	int iif;
	u8 proto;
	u8 dir;
	u8 dscp;			/* as a TOS byte without its ECN bits */
	u8 checks;			/* see rtcache_checks() */
};

#define RTCACHE_FLOW_WORDS (sizeof(struct rtcache_flow) / sizeof(u64))

struct rtcache_entry {
	struct rtcache_flow flow;
	struct dst_entry *dst;
	u32 learned;			/* jiffies */
	struct rcu_head rcu;
};

/* The tags spare most look-ups that find nothing the entries themselves: a full
 * bucket that refuses a flow costs one cache line.
 */
struct rtcache_bucket {
	struct rtcache_entry __rcu *slot[RTCACHE_WAYS];
	u32 used[RTCACHE_WAYS];		/* jiffies */
	u16 tag[RTCACHE_WAYS];		/* never 0 for a slot in use */
	spinlock_t lock;		/* of who changes slots and tags */
} ____cacheline_aligned;

enum rtcache_stat {
	RTCACHE_HIT,		/* packets that got a route */
	RTCACHE_MISS,		/* packets of a kind that could have */
	RTCACHE_LEARNED,	/* entries made */
	RTCACHE_RENEWED,	/* entries whose route was learned anew */
	RTCACHE_REFUSED,	/* flows turned away because their bucket is full */
	RTCACHE_REPLACED,	/* entries that made room for another */
	RTCACHE_AGED,		/* entries removed because idle or invalid */
	RTCACHE_DROPPED,	/* entries removed with a device or the cache */
	RTCACHE_STATS
};

static const char *const rtcache_stat_names[RTCACHE_STATS] = {
	[RTCACHE_HIT]		= "hits",
	[RTCACHE_MISS]		= "misses",
	[RTCACHE_LEARNED]	= "learned",
	[RTCACHE_RENEWED]	= "renewed",
	[RTCACHE_REFUSED]	= "refused",
	[RTCACHE_REPLACED]	= "replaced",
	[RTCACHE_AGED]		= "aged",
	[RTCACHE_DROPPED]	= "dropped",
};

/* A packet between our two hooks. Its address is never followed: the packet may
 * have been dropped.
 */
struct rtcache_pending {
	const struct sk_buff *skb;
	struct rtcache_flow flow;
};

#define RTCACHE_PENDING_BITS 4

/* A batch of packets passes PRE_ROUTING before its first passes FORWARD, so
 * several can be pending. One that overwrites another only delays its flow.
 */
struct rtcache_cpu {
	unsigned long stat[RTCACHE_STATS];
	u32 dice;
	struct rtcache_pending pending[1 << RTCACHE_PENDING_BITS];
};

struct rtcache_table {
	struct net *net;
	struct nf_hook_ops hooks[2];
	struct rtcache_cpu __percpu *cpu;
	struct delayed_work sweep;
	atomic_t entries;
	unsigned long seed;
	unsigned int bits;
	struct rtcache_bucket bucket[];
};

struct rtcache_net {
	struct mutex lock;		/* of table; taken inside the RTNL */
	struct rtcache_table *table;	/* NULL while switched off */
	struct ctl_table_header *header;
	struct ctl_table sysctl[2];
};

static unsigned int rtcache_net_id __read_mostly;

static void rtcache_count(struct rtcache_table *t, enum rtcache_stat stat)
{
	this_cpu_inc(t->cpu->stat[stat]);
}

/* Flows */

/* The settings of an input device that source validation looks at. Changing
 * them invalidates no route, so they are part of a flow: without them, traffic
 * that rp_filter would now refuse kept flowing.
 */
static u8 rtcache_checks(struct in_device *in_dev)
{
	return min_t(int, IN_DEV_RPFILTER(in_dev), 3) |
	       (IN_DEV_SRC_VMARK(in_dev) ? BIT(2) : 0) |
	       (IN_DEV_ACCEPT_LOCAL(in_dev) ? BIT(3) : 0);
}

/* One-way streams stay IP_CT_NEW for ever, so it is not the state that counts
 * but that the connection is in the table. A template is marked as if it were.
 */
static bool rtcache_may_track(const struct nf_conn *ct,
			      enum ip_conntrack_info ctinfo)
{
	unsigned long status = READ_ONCE(ct->status);

	return ctinfo != IP_CT_RELATED && ctinfo != IP_CT_RELATED_REPLY &&
	       (status & IPS_CONFIRMED) &&
	       !(status & (IPS_DYING | IPS_TEMPLATE));
}

static bool rtcache_in_vrf(const struct net_device *dev)
{
	return netif_is_l3_master(dev) || netif_is_l3_slave(dev);
}

/* Says which flow a packet belongs to, or that it is none of ours. The answer
 * is the same in PRE_ROUTING and FORWARD, but for a setting changed between.
 */
static bool rtcache_describe(struct rtcache_flow *flow,
			     const struct sk_buff *skb,
			     const struct net_device *in)
{
	const struct nf_conntrack_tuple *orig;
	const struct iphdr *iph = ip_hdr(skb);
	struct in_device *in_dev;
	enum ip_conntrack_info ctinfo;
	const struct nf_conn *ct;

	ct = nf_ct_get(skb, &ctinfo);
	if (!ct || !rtcache_may_track(ct, ctinfo))
		return false;
	if (iph->ihl != 5 || ip_is_fragment(iph) ||
	    skb->pkt_type != PACKET_HOST || skb->sk ||
	    secpath_exists(skb) || nf_bridge_info_exists(skb))
		return false;
	if (rtcache_in_vrf(in))
		return false;
	in_dev = __in_dev_get_rcu(in);
	if (!in_dev)
		return false;

	orig = &ct->tuplehash[IP_CT_DIR_ORIGINAL].tuple;
	*flow = (struct rtcache_flow) {
		.ct = ct,
		.orig_saddr = orig->src.u3.ip,
		.orig_daddr = orig->dst.u3.ip,
		.orig_sport = orig->src.u.all,
		.orig_dport = orig->dst.u.all,
		.proto = orig->dst.protonum,
		.dir = CTINFO2DIR(ctinfo),
		.saddr = iph->saddr,
		.daddr = iph->daddr,
		.mark = skb->mark,
		.iif = in->ifindex,
		.dscp = iph->tos & ~INET_ECN_MASK,
		.checks = rtcache_checks(in_dev),
	};
	return true;
}

static bool rtcache_same(const struct rtcache_flow *a,
			 const struct rtcache_flow *b)
{
	const u64 *x = (const u64 *)a, *y = (const u64 *)b;
	u64 differ = 0;
	int i;

	for (i = 0; i < RTCACHE_FLOW_WORDS; i++)
		differ |= x[i] ^ y[i];
	return !differ;
}

/* Entries */

/* 32 bits: the upper say which bucket, the lower 16 are the tag. Flows of one
 * connection that differ in mark and the like share a bucket.
 */
static u32 rtcache_hash(const struct rtcache_table *t,
			const struct rtcache_flow *flow)
{
	return hash_64(((unsigned long)flow->ct + flow->dir) ^ t->seed, 32);
}

static struct rtcache_bucket *rtcache_bucket(struct rtcache_table *t, u32 hash)
{
	return &t->bucket[hash >> (32 - t->bits)];
}

static u16 rtcache_tag(u32 hash)
{
	return (u16)hash ?: 1;
}

static u32 rtcache_idle(const struct rtcache_bucket *b, int i)
{
	return (u32)jiffies - READ_ONCE(b->used[i]);
}

/* Returns the slot that holds the flow, or -1. Under RCU or the bucket's lock.
 */
static int rtcache_find(const struct rtcache_bucket *b, u16 tag,
			const struct rtcache_flow *flow,
			struct rtcache_entry **found)
{
	struct rtcache_entry *e;
	int i;

	for (i = 0; i < RTCACHE_WAYS; i++) {
		if (READ_ONCE(b->tag[i]) != tag)
			continue;
		e = rcu_dereference_check(b->slot[i],
					  lockdep_is_held(&b->lock));
		if (e && rtcache_same(&e->flow, flow)) {
			*found = e;
			return i;
		}
	}
	return -1;
}

/* Returns the slot that a new flow may take: a free one, else the one that was
 * idle longest, if that is long enough; else -1.
 */
static int rtcache_room(const struct rtcache_bucket *b)
{
	u32 idle, longest = RTCACHE_REPLACE_IDLE;
	int i, room = -1;

	for (i = 0; i < RTCACHE_WAYS; i++) {
		if (!READ_ONCE(b->tag[i]))
			return i;
		idle = rtcache_idle(b, i);
		if (idle >= longest) {
			longest = idle;
			room = i;
		}
	}
	return room;
}

static void rtcache_free_entry(struct rcu_head *rcu)
{
	struct rtcache_entry *e = container_of(rcu, struct rtcache_entry, rcu);

	dst_release(e->dst);
	kfree(e);
}

static struct rtcache_entry *rtcache_new_entry(const struct rtcache_flow *flow,
					       struct dst_entry *dst)
{
	struct rtcache_entry *e;

	e = kmalloc(sizeof(*e), GFP_ATOMIC | __GFP_NOWARN);
	if (!e)
		return NULL;
	if (!dst_hold_safe(dst)) {
		kfree(e);
		return NULL;
	}
	e->flow = *flow;
	e->dst = dst;
	e->learned = (u32)jiffies;
	return e;
}

/* Puts e into its bucket, in place of an older entry of the same flow if there
 * is one; lets it go if there is no room. In softirq context.
 *
 * Who takes a device down marks it so, and then looks through the table for
 * its entries: under the lock of the bucket, either e is seen there or the mark
 * is seen here. Packets can still be on their way from a device that is down.
 */
static void rtcache_insert(struct rtcache_table *t, struct rtcache_entry *e,
			   const struct net_device *in)
{
	u32 hash = rtcache_hash(t, &e->flow);
	struct rtcache_bucket *b = rtcache_bucket(t, hash);
	enum rtcache_stat stat = RTCACHE_RENEWED;
	struct rtcache_entry *old = NULL;
	int i = -1;

	spin_lock(&b->lock);
	if (netif_running(in) && netif_running(e->dst->dev)) {
		i = rtcache_find(b, rtcache_tag(hash), &e->flow, &old);
		if (i < 0) {
			stat = RTCACHE_LEARNED;
			i = rtcache_room(b);
		}
	}
	if (i >= 0) {
		old = rcu_dereference_protected(b->slot[i],
						lockdep_is_held(&b->lock));
		rcu_assign_pointer(b->slot[i], e);
		WRITE_ONCE(b->tag[i], rtcache_tag(hash));
		WRITE_ONCE(b->used[i], (u32)jiffies);
		if (!old)
			atomic_inc(&t->entries);
	}
	spin_unlock(&b->lock);

	if (i < 0) {
		old = e;
	} else {
		rtcache_count(t, stat);
		if (old && stat == RTCACHE_LEARNED)
			rtcache_count(t, RTCACHE_REPLACED);
	}
	if (old)
		call_rcu(&old->rcu, rtcache_free_entry);
}

typedef bool (*rtcache_condition)(const struct rtcache_entry *e, u32 idle,
				  const struct net_device *dev);

/* Removes the entries that meet a condition. In process context. */
static void rtcache_remove(struct rtcache_table *t, enum rtcache_stat stat,
			   rtcache_condition gone, const struct net_device *dev)
{
	struct rtcache_bucket *b;
	struct rtcache_entry *e;
	int i;

	for (b = t->bucket; b < t->bucket + (1UL << t->bits); b++) {
		spin_lock_bh(&b->lock);
		for (i = 0; i < RTCACHE_WAYS; i++) {
			e = rcu_dereference_protected(b->slot[i],
						      lockdep_is_held(&b->lock));
			if (!e || !gone(e, rtcache_idle(b, i), dev))
				continue;
			RCU_INIT_POINTER(b->slot[i], NULL);
			WRITE_ONCE(b->tag[i], 0);
			atomic_dec(&t->entries);
			rtcache_count(t, stat);
			call_rcu(&e->rcu, rtcache_free_entry);
		}
		spin_unlock_bh(&b->lock);
		cond_resched();
	}
}

static bool rtcache_any(const struct rtcache_entry *e, u32 idle,
			const struct net_device *dev)
{
	return true;
}

static bool rtcache_is_old(const struct rtcache_entry *e, u32 idle,
			   const struct net_device *dev)
{
	return idle >= RTCACHE_MAX_IDLE || !dst_check(e->dst, 0);
}

/* The kernel may already have taken its device from a route, and has then made
 * the route invalid.
 */
static bool rtcache_has_device(const struct rtcache_entry *e, u32 idle,
			       const struct net_device *dev)
{
	return e->flow.iif == dev->ifindex || e->dst->dev == dev ||
	       !dst_check(e->dst, 0);
}

static void rtcache_sweep(struct work_struct *work)
{
	struct rtcache_table *t = container_of(to_delayed_work(work),
					       struct rtcache_table, sweep);

	rtcache_remove(t, RTCACHE_AGED, rtcache_is_old, NULL);
	queue_delayed_work(system_power_efficient_wq, &t->sweep,
			   RTCACHE_SWEEP_INTERVAL);
}

/* Hooks */

/* Says whether a packet may bring its flow in. Good randomness is not needed, and
 * costs as much as forwarding the packet before the kernel has gathered enough.
 */
static bool rtcache_admit(struct rtcache_table *t)
{
	u32 *dice = this_cpu_ptr(&t->cpu->dice);

	*dice = next_pseudo_random32(*dice);
	return (*dice >> 16) % RTCACHE_ADMIT_ONE_IN == 0;
}

static struct rtcache_pending *rtcache_pending(struct rtcache_table *t,
					       const struct sk_buff *skb)
{
	return this_cpu_ptr(&t->cpu->pending[hash_ptr(skb, RTCACHE_PENDING_BITS)]);
}

/* PRE_ROUTING. A packet that user space held comes back in process context; it
 * is left alone here and in FORWARD, where what belongs to this CPU is used.
 */
static unsigned int rtcache_serve(void *priv, struct sk_buff *skb,
				  const struct nf_hook_state *state)
{
	struct rtcache_table *t = priv;
	struct rtcache_entry *e = NULL;
	struct rtcache_pending *pending;
	struct rtcache_bucket *b;
	struct rtcache_flow flow;
	u32 hash;
	int i;

	if (!in_softirq())
		return NF_ACCEPT;
	/* Whatever was pending at this address is gone, and this is another. */
	pending = rtcache_pending(t, skb);
	if (pending->skb == skb)
		pending->skb = NULL;
	if (skb_dst(skb) || !rtcache_describe(&flow, skb, state->in))
		return NF_ACCEPT;

	hash = rtcache_hash(t, &flow);
	b = rtcache_bucket(t, hash);
	i = rtcache_find(b, rtcache_tag(hash), &flow, &e);
	if (i >= 0 && (u32)jiffies - e->learned < RTCACHE_MAX_AGE &&
	    dst_check(e->dst, 0)) {
		skb_dst_set_noref(skb, e->dst);
		if (rtcache_idle(b, i))
			WRITE_ONCE(b->used[i], (u32)jiffies);
		rtcache_count(t, RTCACHE_HIT);
		return NF_ACCEPT;
	}

	rtcache_count(t, RTCACHE_MISS);
	if (i < 0 && rtcache_room(b) < 0) {
		rtcache_count(t, RTCACHE_REFUSED);
		return NF_ACCEPT;
	}
	if (i < 0 && !rtcache_admit(t))
		return NF_ACCEPT;
	pending->skb = skb;
	pending->flow = flow;
	return NF_ACCEPT;
}

/* Says whether the route that a packet was given may serve others of its flow.
 * Not a route that leads out where the packet came in, because the kernel tells
 * such a sender of the better way; not one of several paths, because other
 * packets of a batch may be routed like the one before them; not one that holds
 * only for a while (a redirect, a path MTU).
 */
static bool rtcache_may_keep(const struct sk_buff *skb,
			     const struct nf_hook_state *state)
{
	const struct rtable *rt = skb_rtable(skb);
	struct dst_entry *dst = skb_dst(skb);

	if (!dst || dst->ops->family != AF_INET ||
	    (dst->flags & (DST_METADATA | DST_FAKE_RTABLE)) ||
	    dst_xfrm(dst) || dst->lwtstate || dst->error || dst->expires)
		return false;
	if (rt->rt_type != RTN_UNICAST || !rt->rt_is_input ||
	    (rt->rt_flags & (RTCF_BROADCAST | RTCF_MULTICAST | RTCF_LOCAL |
			     RTCF_DOREDIRECT)))
		return false;
	if (IPCB(skb)->flags & (IPSKB_DOREDIRECT | IPSKB_MULTIPATH))
		return false;
	if (state->out != dst->dev || state->out == state->in ||
	    rtcache_in_vrf(state->out))
		return false;
	return dst_check(dst, 0);
}

/* FORWARD. The flow must be what it was in PRE_ROUTING, the settings that its
 * source was judged by included: they were seen before it was judged and are
 * the same after.
 */
static unsigned int rtcache_learn(void *priv, struct sk_buff *skb,
				  const struct nf_hook_state *state)
{
	struct rtcache_table *t = priv;
	struct rtcache_pending *pending;
	struct rtcache_entry *e;
	struct rtcache_flow flow;

	if (!in_softirq())
		return NF_ACCEPT;
	pending = rtcache_pending(t, skb);
	if (likely(pending->skb != skb))
		return NF_ACCEPT;
	pending->skb = NULL;

	if (!rtcache_describe(&flow, skb, state->in) ||
	    !rtcache_same(&flow, &pending->flow) ||
	    !rtcache_may_keep(skb, state))
		return NF_ACCEPT;

	e = rtcache_new_entry(&flow, skb_dst(skb));
	if (e)
		rtcache_insert(t, e, state->in);
	return NF_ACCEPT;
}

/* Tables */

static struct rtcache_table *rtcache_new_table(struct net *net)
{
	unsigned int bits = order_base_2(clamp_t(unsigned int, entries,
						 RTCACHE_MIN_ENTRIES,
						 RTCACHE_MAX_ENTRIES) /
					 RTCACHE_WAYS);
	struct rtcache_table *t;
	unsigned long i;
	int cpu;

	t = kvzalloc(struct_size(t, bucket, 1UL << bits), GFP_KERNEL_ACCOUNT);
	if (!t)
		return NULL;
	t->cpu = alloc_percpu(struct rtcache_cpu);
	if (!t->cpu) {
		kvfree(t);
		return NULL;
	}
	for (i = 0; i < 1UL << bits; i++)
		spin_lock_init(&t->bucket[i].lock);
	for_each_possible_cpu(cpu)
		per_cpu_ptr(t->cpu, cpu)->dice = get_random_u32();
	t->net = net;
	t->bits = bits;
	t->seed = get_random_long();
	INIT_DELAYED_WORK(&t->sweep, rtcache_sweep);
	t->hooks[0] = (struct nf_hook_ops) {
		.hook = rtcache_serve,
		.priv = t,
		.pf = NFPROTO_IPV4,
		.hooknum = NF_INET_PRE_ROUTING,
		.priority = NF_IP_PRI_LAST,
	};
	t->hooks[1] = (struct nf_hook_ops) {
		.hook = rtcache_learn,
		.priv = t,
		.pf = NFPROTO_IPV4,
		.hooknum = NF_INET_FORWARD,
		.priority = NF_IP_PRI_FIRST,
	};
	return t;
}

/* Nothing may use the table any more: its hooks are gone, and a grace period
 * has passed since.
 */
static void rtcache_free_table(struct rtcache_table *t)
{
	cancel_delayed_work_sync(&t->sweep);
	rtcache_remove(t, RTCACHE_DROPPED, rtcache_any, NULL);
	free_percpu(t->cpu);
	kvfree(t);
}

static int rtcache_switch_on(struct rtcache_net *rn, struct net *net)
{
	struct rtcache_table *t = rtcache_new_table(net);
	int err;

	if (!t)
		return -ENOMEM;
	err = nf_register_net_hooks(net, t->hooks, ARRAY_SIZE(t->hooks));
	if (err) {
		synchronize_net();	/* the first may have been there */
		rtcache_free_table(t);
		return err;
	}
	queue_delayed_work(system_power_efficient_wq, &t->sweep,
			   RTCACHE_SWEEP_INTERVAL);
	rn->table = t;
	return 0;
}

static void rtcache_switch_off(struct rtcache_net *rn)
{
	struct rtcache_table *t = rn->table;

	rn->table = NULL;
	nf_unregister_net_hooks(t->net, t->hooks, ARRAY_SIZE(t->hooks));
	synchronize_net();
	rtcache_free_table(t);
}

/* Devices. The table may be off, or be switched off at this moment. */
static int rtcache_device_event(struct notifier_block *nb, unsigned long event,
				void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);
	struct rtcache_net *rn = net_generic(dev_net(dev), rtcache_net_id);

	if (event != NETDEV_DOWN && event != NETDEV_UNREGISTER)
		return NOTIFY_DONE;
	mutex_lock(&rn->lock);
	if (rn->table)
		rtcache_remove(rn->table, RTCACHE_DROPPED, rtcache_has_device,
			       dev);
	mutex_unlock(&rn->lock);
	return NOTIFY_DONE;
}

static struct notifier_block rtcache_device_notifier = {
	.notifier_call = rtcache_device_event,
};

/* net.rtcache.enabled */

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
#define RTCACHE_CTL const struct ctl_table
#else
#define RTCACHE_CTL struct ctl_table
#endif

static int rtcache_sysctl(RTCACHE_CTL *ctl, int write, void *buffer,
			  size_t *lenp, loff_t *ppos)
{
	struct rtcache_net *rn = ctl->extra1;
	struct net *net = ctl->extra2;
	int on, err;
	struct ctl_table value = {
		.procname = ctl->procname,
		.data = &on,
		.maxlen = sizeof(on),
		.mode = ctl->mode,
		.extra1 = SYSCTL_ZERO,
		.extra2 = SYSCTL_ONE,
	};

	mutex_lock(&rn->lock);
	on = !!rn->table;
	err = proc_dointvec_minmax(&value, write, buffer, lenp, ppos);
	if (!err && write && on != !!rn->table) {
		if (on)
			err = rtcache_switch_on(rn, net);
		else
			rtcache_switch_off(rn);
	}
	mutex_unlock(&rn->lock);
	return err;
}

static int rtcache_register_sysctl(struct rtcache_net *rn, struct net *net)
{
	rn->sysctl[0] = (struct ctl_table) {
		.procname = "enabled",
		.maxlen = sizeof(int),
		.mode = 0644,
		.proc_handler = rtcache_sysctl,
		.extra1 = rn,
		.extra2 = net,
	};
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	rn->header = register_net_sysctl_sz(net, "net/rtcache", rn->sysctl, 1);
#else
	rn->header = register_net_sysctl(net, "net/rtcache", rn->sysctl);
#endif
	return rn->header ? 0 : -ENOMEM;
}

/* /proc/net/rtcache */

static int rtcache_show(struct seq_file *m, void *v)
{
	struct net *net = seq_file_single_net(m);
	struct rtcache_net *rn = net_generic(net, rtcache_net_id);
	const struct rtcache_table *t;
	unsigned long sum;
	int cpu, i;

	mutex_lock(&rn->lock);
	t = rn->table;
	seq_printf(m, "enabled %d\n", !!t);
	seq_printf(m, "capacity %lu\n", t ? RTCACHE_WAYS * (1UL << t->bits) : 0);
	seq_printf(m, "entries %d\n", t ? atomic_read(&t->entries) : 0);
	for (i = 0; i < RTCACHE_STATS; i++) {
		sum = 0;
		if (t)
			for_each_possible_cpu(cpu)
				sum += READ_ONCE(per_cpu_ptr(t->cpu, cpu)->stat[i]);
		seq_printf(m, "%s %lu\n", rtcache_stat_names[i], sum);
	}
	mutex_unlock(&rn->lock);
	return 0;
}

/* Namespaces */

/* Only who administers the machine may switch the cache on, not the root of a
 * user namespace: the memory is the machine's.
 */
static int __net_init rtcache_net_init(struct net *net)
{
	struct rtcache_net *rn = net_generic(net, rtcache_net_id);
	int err;

	mutex_init(&rn->lock);
	if (!proc_create_net_single("rtcache", 0444, net->proc_net,
				    rtcache_show, NULL))
		return -ENOMEM;
	if (net->user_ns != &init_user_ns)
		return 0;
	err = rtcache_register_sysctl(rn, net);
	if (err)
		remove_proc_entry("rtcache", net->proc_net);
	return err;
}

/* Between this and rtcache_net_exit() the kernel lets a grace period pass. */
static void __net_exit rtcache_net_pre_exit(struct net *net)
{
	struct rtcache_net *rn = net_generic(net, rtcache_net_id);

	if (rn->header)
		unregister_net_sysctl_table(rn->header);
	if (rn->table)
		nf_unregister_net_hooks(net, rn->table->hooks,
					ARRAY_SIZE(rn->table->hooks));
}

static void __net_exit rtcache_net_exit(struct net *net)
{
	struct rtcache_net *rn = net_generic(net, rtcache_net_id);

	remove_proc_entry("rtcache", net->proc_net);
	mutex_lock(&rn->lock);
	if (rn->table)
		rtcache_free_table(rn->table);
	rn->table = NULL;
	mutex_unlock(&rn->lock);
}

static struct pernet_operations rtcache_net_ops = {
	.init = rtcache_net_init,
	.pre_exit = rtcache_net_pre_exit,
	.exit = rtcache_net_exit,
	.id = &rtcache_net_id,
	.size = sizeof(struct rtcache_net),
};

static int __init rtcache_init(void)
{
	int err;

	/* Compared word by word, with nothing between the fields. */
	BUILD_BUG_ON(sizeof(struct rtcache_flow) !=
		     offsetofend(struct rtcache_flow, checks));
	BUILD_BUG_ON(sizeof(struct rtcache_flow) % sizeof(u64));

	err = register_pernet_subsys(&rtcache_net_ops);
	if (err)
		return err;
	err = register_netdevice_notifier(&rtcache_device_notifier);
	if (err)
		unregister_pernet_subsys(&rtcache_net_ops);
	return err;
}

static void __exit rtcache_exit(void)
{
	unregister_netdevice_notifier(&rtcache_device_notifier);
	unregister_pernet_subsys(&rtcache_net_ops);
	rcu_barrier();	/* rtcache_free_entry() */
}

module_init(rtcache_init);
module_exit(rtcache_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Route cache for forwarded IPv4 connections");
MODULE_AUTHOR("The rampart authors");
