// What the load generator measures with: samples of times, and the CPU time and memory of others.

#ifndef METER_H
#define METER_H

#include "wire.h"

#define MAX_PIDS 64

// ---------------------------------------------------------------------------- times, as samples

typedef struct {
    uint32_t *of;
    size_t n, cap;
} Samples;

static inline void note(Samples *s, uint64_t ns) {
    if (s->n == s->cap) s->of = grown(s->of, (s->cap = s->cap ? 2 * s->cap : 4096) * sizeof *s->of);
    s->of[s->n++] = ns > UINT32_MAX ? UINT32_MAX : ns;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static inline void print_samples(const char *name, Samples *s) {
    if (!s->n) return;
    qsort(s->of, s->n, sizeof *s->of, by_size);
    printf(",\"%s\":{\"p50\":%.1f,\"p99\":%.1f}", name, s->of[(s->n - 1) / 2] / 1e3,
           s->of[(s->n - 1) * 99 / 100] / 1e3);
}

// ------------------------------------------------------------------------ what others cost

typedef struct {
    pid_t pid[MAX_PIDS];
    int n;
    uint64_t before;
} Processes;

static inline void read_pids(Processes *p, char *list) {
    for (char *word = strtok(list, ","); word && p->n < MAX_PIDS; word = strtok(NULL, ","))
        p->pid[p->n++] = atoi(word);
}

// Nanoseconds, user and system, of all threads, those that have ended too.
static inline uint64_t cpu_ns(const Processes *p) {
    uint64_t sum = 0;
    for (int i = 0; i < p->n; i++) {
        clockid_t clock;
        struct timespec t;
        if (clock_getcpuclockid(p->pid[i], &clock) || clock_gettime(clock, &t)) {
            fprintf(stderr, "load: process %d is gone\n", p->pid[i]);
            exit(1);
        }
        sum += (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
    }
    return sum;
}

static inline uint64_t own_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static inline long rss_kb(const Processes *p) {
    long sum = 0;
    for (int i = 0; i < p->n; i++) {
        char line[256];
        long kb;
        snprintf(line, sizeof line, "/proc/%d/status", p->pid[i]);
        FILE *f = fopen(line, "r");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "VmRSS: %ld", &kb) == 1) sum += kb;
        if (f) fclose(f);
    }
    return sum;
}

#endif
