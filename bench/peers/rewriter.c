/* Upper bound for a rewriting program, written by hand: it only rewrites WRITEs to 1,024 queue pairs, without the checks
 * that a real one needs. One port, one worker.
 *
 * arguments: mode  0 no ICRC, 1 ICRC recomputed (rte_net_crc), 2 ICRC corrected by the difference
 *            table 0 rte_hash by (address, QPN), 1 array by QPN */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_hash.h>
#include <rte_hash_crc.h>
#include <rte_net_crc.h>
#include <rte_malloc.h>
#include <wmmintrin.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
#define B 32
struct key { uint32_t ip, qp; };
struct ent { uint8_t mac[12]; uint32_t sip, dip, qpn, psnd; uint64_t pkts; uint32_t pad[6]; } __rte_aligned(64);
static struct rte_hash *H; static struct ent *T; static int mode, direct; static volatile int stop; static int nullmode;
static uint32_t xpow[2048]; /* x^(8n) mod P, reflected */
static uint32_t mulmod(uint32_t a, uint32_t b) { /* reflected bitwise, init only */
	uint32_t p = 0; for (int i = 31; i >= 0; i--) { if ((a >> i) & 1) p ^= b; b = (b >> 1) ^ ((b & 1) ? 0xEDB88320u : 0); } return p; }
static inline uint32_t clmulmod(uint32_t a, uint32_t b) { /* reflected Barrett */
	__m128i t = _mm_clmulepi64_si128(_mm_cvtsi32_si128(a), _mm_cvtsi32_si128(b), 0);
	uint64_t v = ((uint64_t)_mm_cvtsi128_si64(t)) << 1;
	/* low 32 bits of v are the high-order half in reflected order: reduce with 4-byte CRC step */
	uint32_t lo = (uint32_t)v, hi = (uint32_t)(v >> 32);
	__m128i q = _mm_clmulepi64_si128(_mm_cvtsi32_si128(lo), _mm_set_epi64x(0, 0x1F7011641LL), 0);
	q = _mm_clmulepi64_si128(_mm_and_si128(q, _mm_set_epi64x(0, 0xFFFFFFFFLL)), _mm_set_epi64x(0, 0x1DB710641LL), 0);
	return hi ^ (uint32_t)((uint64_t)_mm_cvtsi128_si64(q) >> 32);
}
static void onsig(int s) { (void)s; stop = 1; }
static inline uint16_t ckfix(uint16_t c, uint32_t o, uint32_t n) {
	uint32_t s = (uint16_t)~c; s += (uint16_t)~(o >> 16); s += (uint16_t)~o; s += (n >> 16); s += (n & 0xffff);
	s = (s & 0xffff) + (s >> 16); s = (s & 0xffff) + (s >> 16); return ~s; }
static int worker(void *a) {
	(void)a; struct rte_mbuf *m[B]; struct key k[B]; const void *kp[B]; int32_t pos[B];
	for (int i = 0; i < B; i++) kp[i] = &k[i];
	while (!stop) {
		uint16_t n = rte_eth_rx_burst(0, 0, m, B), o = 0; if (!n) continue;
		for (int i = 0; i < n; i++) rte_prefetch0(rte_pktmbuf_mtod(m[i], void *));
		for (int i = 0; i < n; i++) {
			uint8_t *p = rte_pktmbuf_mtod(m[i], uint8_t *);
			int ok = nullmode || (*(uint16_t *)(p + 12) == 0x0008 && p[14] == 0x45 && p[23] == 17 && *(uint16_t *)(p + 36) == rte_cpu_to_be_16(4791));
			k[i].ip = *(uint32_t *)(p + 30); k[i].qp = ok ? rte_be_to_cpu_32(*(uint32_t *)(p + 46)) & 0xffffff : ~0u;
		}
		if (direct) for (int i = 0; i < n; i++) { pos[i] = k[i].qp < 65536 ? (int)k[i].qp : -1; if (pos[i] >= 0 && T[pos[i]].pad[0] != k[i].ip) pos[i] = -1; }
		else rte_hash_lookup_bulk(H, kp, n, pos);
		for (int i = 0; i < n; i++) {
			if (pos[i] < 0) { rte_pktmbuf_free(m[i]); continue; }
			struct ent *e = &T[pos[i]]; uint8_t *p = rte_pktmbuf_mtod(m[i], uint8_t *); e->pkts++;
			uint32_t os = rte_be_to_cpu_32(*(uint32_t *)(p + 26)), od = rte_be_to_cpu_32(*(uint32_t *)(p + 30));
			uint16_t c = rte_be_to_cpu_16(*(uint16_t *)(p + 24)); c = ckfix(c, os, e->sip); c = ckfix(c, od, e->dip);
			uint32_t oldq = *(uint32_t *)(p + 46), oldp = *(uint32_t *)(p + 50);
			uint64_t oldip = *(uint64_t *)(p + 26);
			*(uint32_t *)(p + 26) = rte_cpu_to_be_32(e->sip); *(uint32_t *)(p + 30) = rte_cpu_to_be_32(e->dip); *(uint16_t *)(p + 24) = rte_cpu_to_be_16(c);
			*(uint32_t *)(p + 46) = (oldq & 0xff) | (rte_cpu_to_be_32(e->qpn) & 0xffffff00);
			uint32_t hp = rte_be_to_cpu_32(oldp); *(uint32_t *)(p + 50) = rte_cpu_to_be_32((hp & 0xff000000) | ((hp + e->psnd) & 0xffffff));
			uint16_t len = m[i]->data_len;
			if (mode == 1) { uint64_t se = *(uint64_t *)(p + 6); uint8_t tos = p[15], ttl = p[22], rs = p[46]; uint16_t ic = *(uint16_t *)(p + 24), uc = *(uint16_t *)(p + 40);
				*(uint64_t *)(p + 6) = ~0ULL; p[15] = p[22] = p[46] = 0xff; *(uint16_t *)(p + 24) = 0xffff; *(uint16_t *)(p + 40) = 0xffff;
				uint32_t v = rte_net_crc_calc(p + 6, len - 4 - 6, RTE_NET_CRC32_ETH); *(uint32_t *)(p + len - 4) = v;
				*(uint64_t *)(p + 6) = se; p[15] = tos; p[22] = ttl; p[46] = rs; *(uint16_t *)(p + 24) = ic; *(uint16_t *)(p + 40) = uc;
			} else if (mode == 2) { /* 28-byte difference window p+26..p+53 (IPs, UDP, QPN, PSN) */
				uint64_t dip = oldip ^ *(uint64_t *)(p + 26); uint64_t dqp = (uint64_t)(oldq ^ *(uint32_t *)(p + 46)) | ((uint64_t)(oldp ^ *(uint32_t *)(p + 50)) << 32);
				/* crc of polynomial d * x^(8*tail): multiply by x^32 is folded in the xpow index (+4) */
				uint32_t tail = len - 4 - 54;
				uint32_t d = clmulmod((uint32_t)dip, xpow[tail + 20 + 4 + 4]) ^ clmulmod((uint32_t)(dip >> 32), xpow[tail + 20 + 4]) ^ clmulmod((uint32_t)dqp, xpow[tail + 4 + 4]) ^ clmulmod((uint32_t)(dqp >> 32), xpow[tail + 4]);
				*(uint32_t *)(p + len - 4) ^= d; }
			memcpy(p, e->mac, 12); m[o++] = m[i];
		}
		uint16_t s = rte_eth_tx_burst(0, 0, m, o); if (unlikely(s < o)) rte_pktmbuf_free_bulk(&m[s], o - s);
	}
	return 0;
}
int main(int argc, char **argv) {
	int r = rte_eal_init(argc, argv); if (r < 0) return 1; argc -= r; argv += r;
	mode = argc > 1 ? atoi(argv[1]) : 0; direct = argc > 2 ? atoi(argv[2]) : 0; nullmode = argc > 3 ? atoi(argv[3]) : 0;
	signal(SIGINT, onsig); signal(SIGTERM, onsig);
	rte_net_crc_set_alg(RTE_NET_CRC_AVX512);
	xpow[0] = 0x80000000u; for (int i = 1; i < 2048; i++) xpow[i] = mulmod(xpow[i - 1], 0x00800000u);
	for (int i = 0; i < 1000; i++) { uint32_t a = i * 2654435761u, b = i * 40503u * 65599u + 7; if (mulmod(a, b) != clmulmod(a, b)) { printf("clmul bad %d\n", i); return 2; } }
	struct rte_mempool *mp = rte_pktmbuf_pool_create("mp", 16383, 256, 0, 2304, 0);
	struct rte_eth_conf c = {0}; rte_eth_dev_configure(0, 1, 1, &c);
	rte_eth_rx_queue_setup(0, 0, 512, 0, NULL, mp); rte_eth_tx_queue_setup(0, 0, 512, 0, NULL);
	struct rte_hash_parameters hp = { .name = "h", .entries = 65536, .key_len = 8, .hash_func = rte_hash_crc, .socket_id = 0 }; H = rte_hash_create(&hp);
	T = rte_zmalloc("t", sizeof(*T) * 65540, 64);
	for (int i = 0; i < 1024; i++) { struct key k = { nullmode ? 0 : rte_cpu_to_be_32(198u << 24 | 18 << 16 | (1 + i % 200)), nullmode ? i : 0x100 + i };
		int p = direct ? (int)k.qp : rte_hash_add_key(H, &k); struct ent *e = &T[p]; if (direct) e->pad[0] = k.ip;
		e->sip = 0x0a0000fe; e->dip = 198u << 24 | 18 << 16 | (1 + (i * 7) % 200); e->qpn = 0x2000 + i; e->psnd = (i * 977) & 0xffffff; if (nullmode) e->sip = e->dip = e->qpn = 0;
		uint8_t mac[12] = {2,0,0,0,0,(uint8_t)(1 + i % 2),2,0,0,0,0,0xfe}; memcpy(e->mac, mac, 12); }
	rte_eth_dev_start(0); rte_eal_remote_launch(worker, NULL, 1); while (!stop) usleep(20000); rte_eal_mp_wait_lcore(); rte_eal_cleanup(); return 0; }
