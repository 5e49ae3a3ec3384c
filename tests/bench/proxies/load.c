// The load generator: a closed loop over so many connections. Prints one line of JSON.
//
//     load -p PORT -c CONNECTIONS -d SECONDS -w WARM_UP_SECONDS [-b BODY_BYTES] [-a ANSWER_BYTES]
//          [-n CHUNKS -i INTERVAL_US] [-k API_KEY] [-P PID,...] [-E PID,...]
//
// One thread, epoll, HTTP/1.1 with keep-alive. Each connection asks for a chat completion of
// ANSWER_BYTES, or with -n for a stream of CHUNKS, again and again; the first stream of each is cut
// short so that their beginnings are spread evenly from the start. No two requests are alike:
// session and request id differ, and the bodies differ a little in length.
//
// Every answer is judged: status 200, the right length, for streams the right number of chunks and
// the end mark. Counted is what happens within the window of SECONDS after the warm-up; CPU time is
// what the processes of -P (the proxy) and -E (the engines) and this one used within it, by their
// process clocks. Times are in microseconds, up to 4.29 s.

#define _GNU_SOURCE
#include "meter.h"
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define VARIANTS 16    // of the request, by the length of its body
#define TURNS 8        // requests of a session
#define RETRY_MS 10    // before a broken connection is opened again
#define MAX_ERRORS 10000

// ----------------------------------------------------------------------------------- requests

typedef struct {
    char *bytes;
    size_t len, session_at, request_at, order_at;
} Request;

static Request variants[VARIANTS];
static long body_bytes = 512, answer_bytes = 1024, chunks, interval_us = 20000;
static const char *key = "bench";
static int port;

static void make_request(Request *r, long length) {
    static const char start[] =
        "{\"model\":\"" MODEL "\",\"messages\":[{\"role\":\"system\",\"content\":"
        "\"You are a helpful assistant.\"},{\"role\":\"user\",\"content\":\"";
    char end[256], order[128];
    int e = snprintf(end, sizeof end,
                     "\"}],\"max_tokens\":256,\"temperature\":1.0,\"top_p\":1.0,\"stream\":%s}",
                     chunks ? "true" : "false");
    int o = snprintf(order, sizeof order, ORDER, answer_bytes, chunks, interval_us);
    long fill = length - (long)(sizeof start - 1) - o - e;
    if (fill < 0) fill = 0;
    size_t body = sizeof start - 1 + o + fill + e;
    r->bytes = grown(NULL, body + 2048);
    int h = snprintf(r->bytes, 2048,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                     "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
                     "Accept: application/json\r\nContent-Type: application/json\r\n"
                     "User-Agent: AsyncOpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\n"
                     "Authorization: Bearer %s\r\nX-Session-ID: rollout-################\r\n"
                     "X-Request-ID: ################\r\nContent-Length: %zu\r\n\r\n",
                     port, key, body);
    char *at = r->bytes + h;
    at = mempcpy(at, start, sizeof start - 1);
    r->order_at = at - r->bytes;
    at = mempcpy(at, order, o);
    for (long i = 0; i < fill; i++) *at++ = "many other words "[i % 17];
    at = mempcpy(at, end, e);
    r->len = at - r->bytes;
    r->session_at = strstr(r->bytes, "rollout-") + 8 - r->bytes;
    r->request_at = strstr(r->bytes, "X-Request-ID: ") + 14 - r->bytes;
}

static void put_hex(char *at, uint64_t value) {
    value *= 0x9e3779b97f4a7c15ull;  // consecutive numbers must not look alike
    for (int i = 0; i < 16; i++, value >>= 4) at[i] = "0123456789abcdef"[value & 15];
}

// -------------------------------------------------------------------------------- connections

enum { CLOSED, CONNECTING, OPEN };
enum { HEAD, BODY_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

typedef struct {
    int fd, state, waits_to_write, busy;
    uint64_t retry_at, sent_at;
    char *rest;  // of the request, what the socket did not take
    size_t rest_len, rest_off;
    long served, ordered;  // requests so far; chunks of the running one
    // The answer as it comes in.
    int part, status, closes, streams, first_seen, ended;
    long left, body_len, events, line_len;
    uint32_t head_len;
    char head[4096], line[1024];
} Conn;

enum { E_CONNECT, E_CLOSED, E_STATUS, E_LENGTH, E_CHUNKS, E_FRAMING, E_KINDS };
static const char *const error_names[] = {"connect", "closed", "status",
                                          "length",  "chunks", "framing"};

static int poller, counting, waiting;
static long errors[E_KINDS], all_errors;
static uint64_t opened, answers, received, made;
static Samples latency, ttft, chunk_delay;
static size_t event_len;

static void start(Conn *c);

static void watch(Conn *c, int writable) {
    if (c->waits_to_write == writable) return;
    struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    c->waits_to_write = writable;
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void drop(Conn *c) {
    close(c->fd);
    c->state = CLOSED;
    c->busy = 0;
    c->rest_len = c->rest_off = 0;
}

// Count an error, give the connection up and open a new one a little later.
static void fail(Conn *c, int kind) {
    errors[kind]++;
    if (all_errors++ < 3)
        fprintf(stderr, "load: %s: status %d, %ld bytes, %ld chunks: %.400s\n", error_names[kind],
                c->status, c->body_len, c->events, c->head_len ? c->head : "");
    if (all_errors > MAX_ERRORS) {
        fprintf(stderr, "load: too many errors\n");
        exit(1);
    }
    drop(c);
    c->retry_at = now_ns() + RETRY_MS * 1000000ull;
    waiting++;
}

static void connect_to_proxy(Conn *c) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->state = CONNECTING;
    c->waits_to_write = 1;
    opened++;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
    if (connect(c->fd, (void *)&there, sizeof there) && errno != EINPROGRESS) fail(c, E_CONNECT);
}

static void send_rest(Conn *c) {
    while (c->rest_off < c->rest_len) {
        ssize_t r = send(c->fd, c->rest + c->rest_off, c->rest_len - c->rest_off, 0);
        if (r < 0 && errno == EAGAIN) return watch(c, 1);
        if (r < 0) return fail(c, E_CLOSED);
        c->rest_off += r;
    }
    c->rest_len = c->rest_off = 0;
    watch(c, 0);
}

static void start(Conn *c) {
    if (c->state == CLOSED) connect_to_proxy(c);
    if (c->state != OPEN) return;  // goes on once it is connected
    Request *r = &variants[made % VARIANTS];
    uint64_t session = (uint64_t)(uintptr_t)c + c->served / TURNS;
    put_hex(r->session_at + r->bytes, session);
    put_hex(r->request_at + r->bytes, ++made);
    if (chunks) {
        char order[128];
        int n = snprintf(order, sizeof order, ORDER, answer_bytes, c->ordered, interval_us);
        memcpy(r->bytes + r->order_at, order, n);
    }
    c->busy = 1;
    c->served++;
    c->part = HEAD;
    c->head_len = c->body_len = c->events = c->line_len = c->first_seen = c->ended = 0;
    c->sent_at = now_ns();
    ssize_t sent = send(c->fd, r->bytes, r->len, 0);
    if (sent < 0 && errno != EAGAIN) return fail(c, E_CLOSED);
    if (sent < 0) sent = 0;
    if (sent == (ssize_t)r->len) return;
    c->rest_len = r->len - sent;
    c->rest = grown(c->rest, c->rest_len);
    memcpy(c->rest, r->bytes + sent, c->rest_len);
    watch(c, 1);
}

// ------------------------------------------------------------------------------------ answers

static void on_line(Conn *c, const char *line, size_t n, uint64_t t) {
    if (n < 6 || memcmp(line, "data: ", 6)) return;  // comments and blank lines are no chunks
    if (n == sizeof DONE - 3) {
        c->ended = 1;
        return;
    }
    const char *stamp = memmem(line, n, STAMP, sizeof STAMP - 1);
    c->events++;
    if (!counting) return;
    received++;
    if (stamp) {
        uint64_t at = strtoull(stamp + sizeof STAMP - 1, NULL, 10);
        note(&chunk_delay, t > at ? t - at : 0);
    }
}

// Some bytes of the body. -1: no good.
static int on_body(Conn *c, const char *p, size_t n, uint64_t t) {
    if (!c->first_seen && n) {
        c->first_seen = 1;
        if (counting) note(&ttft, t - c->sent_at);
        if (!c->streams && *p != '{') return -1;
    }
    c->body_len += n;
    while (c->streams && n) {
        const char *stop = memchr(p, '\n', n);
        size_t part = stop ? (size_t)(stop - p) : n;
        if (stop && !c->line_len) {
            on_line(c, p, part, t);
        } else {
            if (c->line_len + part > sizeof c->line - 1) return -1;
            memcpy(c->line + c->line_len, p, part);
            c->line_len += part;
            c->line[c->line_len] = 0;
            if (stop) {
                on_line(c, c->line, c->line_len, t);
                c->line_len = 0;
            }
        }
        part += stop != NULL;
        p += part;
        n -= part;
    }
    return 0;
}

static int on_head(Conn *c) {
    long length = -1;
    int chunked = 0;
    c->head[c->head_len] = 0;
    if (strncmp(c->head, "HTTP/1.1 ", 9)) return -1;
    c->status = atoi(c->head + 9);
    c->streams = c->closes = 0;
    for (char *line = c->head; (line = strchr(line, '\n')) && *++line;) {
        if (!strncasecmp(line, "content-length:", 15)) length = strtol(line + 15, NULL, 10);
        if (!strncasecmp(line, "transfer-encoding: chunked", 26)) chunked = 1;
        if (!strncasecmp(line, "content-type: text/event-stream", 31)) c->streams = 1;
        if (!strncasecmp(line, "connection: close", 17)) c->closes = 1;
    }
    if (chunked == (length >= 0)) return -1;
    c->part = chunked ? CHUNK_SIZE : BODY_LENGTH;
    c->left = chunked ? 0 : length;
    return 0;
}

static void finish(Conn *c, uint64_t t) {
    long expected = chunks ? c->ordered * (long)event_len + (long)sizeof DONE - 1 : answer_bytes;
    if (c->status != 200) return fail(c, E_STATUS);
    if (c->streams != !!chunks) return fail(c, E_FRAMING);
    if (chunks && (c->events != c->ordered || !c->ended)) return fail(c, E_CHUNKS);
    if (c->body_len != expected) return fail(c, E_LENGTH);
    if (counting) {
        answers++;
        note(&latency, t - c->sent_at);
    }
    c->busy = 0;
    c->ordered = chunks;
    if (c->closes) drop(c);
    start(c);
}

// What was read from the connection. 1: the answer is whole; 0: goes on; -1: no good.
static int take(Conn *c, const char *p, size_t n, uint64_t t) {
    const char *end = p + n;
    while (p < end) {
        long room = end - p;
        switch (c->part) {
        case HEAD:
            if (c->head_len == sizeof c->head - 1) return -1;
            c->head[c->head_len++] = *p++;
            if (p[-1] != '\n' || c->head_len < 4) break;
            if (memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4)) break;
            if (on_head(c)) return -1;
            if (c->part == BODY_LENGTH && !c->left) return p == end ? 1 : -1;
            break;
        case BODY_LENGTH:
        case CHUNK_DATA:
            if (room > c->left) room = c->left;
            if (on_body(c, p, room, t)) return -1;
            p += room;
            if (c->left -= room) break;
            if (c->part == BODY_LENGTH) return p == end ? 1 : -1;
            c->part = CHUNK_END;
            break;
        case CHUNK_SIZE: {
            char ch = *p++;
            if (ch == '\r') break;
            if (ch == '\n') c->part = c->left ? CHUNK_DATA : TRAILER;
            else if (ch >= '0' && ch <= '9') c->left = 16 * c->left + ch - '0';
            else if ((ch |= 32) >= 'a' && ch <= 'f') c->left = 16 * c->left + ch - 'a' + 10;
            else return -1;
            break;
        }
        case CHUNK_END:
            if (*p++ == '\n') c->part = CHUNK_SIZE;
            break;
        case TRAILER:
            if (*p++ != '\r') break;  // the line end of an empty trailer
            if (p == end) return 0;
            return *p == '\n' && p + 1 == end ? 1 : -1;
        }
    }
    return 0;
}

static void receive(Conn *c) {
    static char buffer[1 << 18];
    for (;;) {
        ssize_t r = recv(c->fd, buffer, sizeof buffer, 0);
        if (r < 0 && errno == EAGAIN) return;
        if (r <= 0 && !c->busy) {  // a proxy may close an idle connection whenever it likes
            drop(c);
            return start(c);
        }
        if (r <= 0) return fail(c, E_CLOSED);
        uint64_t t = now_ns();
        int state = c->busy ? take(c, buffer, r, t) : -1;
        if (state < 0) return fail(c, E_FRAMING);
        if (state > 0) return finish(c, t);
        if (r < (ssize_t)sizeof buffer) return;
    }
}

static void on_event(Conn *c, uint32_t what) {
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) return fail(c, E_CONNECT);
        c->state = OPEN;
        watch(c, 0);
        return start(c);
    }
    if (what & EPOLLOUT) send_rest(c);
    if (c->state == OPEN && (what & ~EPOLLOUT)) receive(c);
}

// ----------------------------------------------------------------------------------- the loop

static void retry(Conn *conns, int count) {
    uint64_t t = now_ns();
    for (int i = 0; waiting && i < count; i++) {
        if (!conns[i].retry_at || conns[i].retry_at > t) continue;
        conns[i].retry_at = 0;
        waiting--;
        start(&conns[i]);
    }
}

// Connections that have waited for the first byte of an answer since before the window.
static int starved(const Conn *conns, int count, uint64_t from) {
    int n = 0;
    for (const Conn *c = conns; c < conns + count; c++)
        n += c->busy && !c->first_seen && c->sent_at < from;
    return n;
}

static void print_result(uint64_t ns, Processes *proxy, Processes *engine, uint64_t own,
                         int stuck) {
    double us = 1e3;
    printf("{\"seconds\":%.6f,\"answers\":%llu,\"chunks\":%llu,\"opened\":%llu", ns / 1e9,
           (unsigned long long)answers, (unsigned long long)received, (unsigned long long)opened);
    printf(",\"cpu_us\":{\"proxy\":%.1f,\"engine\":%.1f,\"load\":%.1f}",
           (cpu_ns(proxy) - proxy->before) / us, (cpu_ns(engine) - engine->before) / us, own / us);
    printf(",\"rss_kb\":%ld,\"starved\":%d,\"errors\":{", rss_kb(proxy), stuck);
    const char *comma = "";
    for (int i = 0; i < E_KINDS; i++) {
        if (!errors[i]) continue;
        printf("%s\"%s\":%ld", comma, error_names[i], errors[i]);
        comma = ",";
    }
    printf("}");
    print_samples("latency_us", &latency);
    print_samples("ttft_us", &ttft);
    print_samples("chunk_delay_us", &chunk_delay);
    printf("}\n");
}

int main(int argc, char **argv) {
    int count = 1;
    double seconds = 1, warm_up = 0.5;
    Processes proxy = {0}, engine = {0};
    for (int o; (o = getopt(argc, argv, "p:c:d:w:b:a:n:i:k:P:E:")) > 0;) {
        switch (o) {
        case 'p': port = atoi(optarg); break;
        case 'c': count = atoi(optarg); break;
        case 'd': seconds = atof(optarg); break;
        case 'w': warm_up = atof(optarg); break;
        case 'b': body_bytes = atol(optarg); break;
        case 'a': answer_bytes = atol(optarg); break;
        case 'n': chunks = atol(optarg); break;
        case 'i': interval_us = atol(optarg); break;
        case 'k': key = optarg; break;
        case 'P': read_pids(&proxy, optarg); break;
        case 'E': read_pids(&engine, optarg); break;
        default: return 2;
        }
    }
    if (optind < argc || port < 1 || count < 1 || seconds <= 0 || chunks < 0 || strlen(key) > 512) {
        fprintf(stderr, "usage: see the start of load.c\n");
        return 2;
    }
    live_at_most(seconds + warm_up + 30);
    event_len = snprintf(NULL, 0, EVENT, 0ull, 0l, 0ull);
    for (int i = 0; i < VARIANTS; i++) make_request(&variants[i], body_bytes + 3 * i);
    Conn *conns = calloc(count, sizeof *conns);
    if (!conns) die("calloc");
    static int input;
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &input};
    epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &e);  // refused for files: then never ends

    uint64_t began = now_ns(), from = began + warm_up * 1e9, until = from + seconds * 1e9, own = 0;
    uint64_t ramp = warm_up * 0.5e9 / count;  // between the first requests of two connections
    int started = 0;
    for (struct epoll_event events[512];;) {
        uint64_t t = now_ns();
        if (!counting && t >= from) {
            counting = 1;
            proxy.before = cpu_ns(&proxy);
            engine.before = cpu_ns(&engine);
            own = own_cpu_ns();
            from = t;
            until = t + seconds * 1e9;
        } else if (counting && t >= until) {
            own = own_cpu_ns() - own;
            print_result(t - from, &proxy, &engine, own, starved(conns, count, from));
            return 0;
        }
        for (; started < count && t >= began + started * ramp; started++) {
            // First streams of 1, 2, ... chunks, so that the ends of all are evenly spread.
            conns[started].ordered = chunks ? 1 + started * (chunks - 1) / count : 0;
            start(&conns[started]);
        }
        if (waiting) retry(conns, count);
        int n = epoll_wait(poller, events, 512, started < count || waiting ? 1 : 5);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr != &input) on_event(events[i].data.ptr, events[i].events);
            else if (input_ended()) return 1;
        }
    }
}
