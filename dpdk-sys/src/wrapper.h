/* Headers for which bindings are generated. Macros and thread-local state are wrapped in functions here. */
#ifndef UNDERSTUDY_DPDK_WRAPPER_H
#define UNDERSTUDY_DPDK_WRAPPER_H

#include <stdio.h>
#include <rte_alarm.h>
#include <rte_bus_vdev.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* rte_errno is a macro over thread-local storage. */
static inline int understudy_rte_errno(void) { return rte_errno; }

/* Flags that are macros with casts or shifts, which bindgen cannot evaluate. */
static const uint64_t UNDERSTUDY_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t UNDERSTUDY_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t UNDERSTUDY_RSS_IP_UDP = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;
static const uint64_t UNDERSTUDY_MBUF_EXTERNAL_OR_INDIRECT = RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT;

#endif
