// A mock inference engine that costs as little as it can: the proxy before it is what is measured.
//
//     engine [-l LIFE_SECONDS] PORT...
//
// One thread, epoll, HTTP/1.1 with keep-alive and Content-Length. Port 0 takes a free one; the line
// on standard output tells the ports as JSON. Each port is one engine to a proxy.
//
// Any POST is answered with what the order in its prompt asks for (wire.h): a chat completion of so
// many bytes, whose `metadata.weight_version` is where SGLang has it, or a stream of chunks at a
// steady interval, that ends one interval after the last one. A chunk that is late does not delay
// the next one. GETs answer what gateways ask when they take an engine in.

#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define MAX_PORTS 64
#define MAX_ANSWER (16 << 20)
#define MAX_REQUEST (64 << 20)

typedef struct {
    int fd;
    int waits_to_write;
    int close_after;
    char *in;
    size_t in_len, in_cap;
    size_t head_len, request_len;  // of the request at the start of `in`; 0 until its head is whole
    char *out;                     // what the socket did not take yet
    size_t out_len, out_off, out_cap;
    long chunks, sent;  // of the running stream; `chunks` is 0 if there is none
    uint64_t id, due, interval;
    long heap_at;  // place among the running streams, -1 if there is none
} Conn;

static int poller;
static uint64_t requests;
static Conn **heap;  // running streams, the one that is due first at 0
static long heap_len, heap_cap;
static size_t event_len;

// ------------------------------------------------------------------------- streams by due time

static void place(long at, Conn *c) {
    heap[at] = c;
    c->heap_at = at;
}

static void sift_up(long at, Conn *c) {
    for (long up; at && heap[up = (at - 1) / 2]->due > c->due; at = up) place(at, heap[up]);
    place(at, c);
}

static void sift_down(long at, Conn *c) {
    for (long down; (down = 2 * at + 1) < heap_len; at = down) {
        if (down + 1 < heap_len && heap[down + 1]->due < heap[down]->due) down++;
        if (heap[down]->due >= c->due) break;
        place(at, heap[down]);
    }
    place(at, c);
}

static void heap_add(Conn *c) {
    if (heap_len == heap_cap) {
        heap_cap = heap_cap ? 2 * heap_cap : 1024;
        heap = grown(heap, heap_cap * sizeof *heap);
    }
    sift_up(heap_len++, c);
}

static void heap_remove(Conn *c) {
    long at = c->heap_at;
    Conn *last = heap[--heap_len];
    c->heap_at = -1;
    if (last == c) return;
    sift_up(at, last);
    sift_down(last->heap_at, last);
}

// ------------------------------------------------------------------------------- connections

static void end(Conn *c) {
    if (c->heap_at >= 0) heap_remove(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static int watch(Conn *c, int writable) {
    if (c->waits_to_write == writable) return 0;
    struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    c->waits_to_write = writable;
    return epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void keep(Conn *c, const void *bytes, size_t n) {
    if (c->out_len + n > c->out_cap) {
        c->out_cap = 2 * (c->out_len + n);
        c->out = grown(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, bytes, n);
    c->out_len += n;
}

// Send two parts as one, after what is still waiting. -1: the connection is broken.
static int transmit(Conn *c, const void *a, size_t an, const void *b, size_t bn) {
    size_t done = 0;
    if (!c->out_len) {
        struct iovec parts[] = {{(void *)a, an}, {(void *)b, bn}};
        ssize_t r = writev(c->fd, parts, bn ? 2 : 1);
        if (r < 0 && errno != EAGAIN) return -1;
        if (r > 0) done = r;
        if (done == an + bn) return 0;
    }
    if (done < an) keep(c, (const char *)a + done, an - done);
    size_t of_b = done > an ? done - an : 0;
    keep(c, (const char *)b + of_b, bn - of_b);
    return watch(c, 1);
}

static int flush(Conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t r = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, 0);
        if (r < 0) return errno == EAGAIN ? watch(c, 1) : -1;
        c->out_off += r;
    }
    c->out_off = c->out_len = 0;
    return watch(c, 0);
}

// ----------------------------------------------------------------------------------- answers

static int answer_json(Conn *c, const char *status, const char *body, size_t n) {
    char head[256];
    int h = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\ndate: Mon, 30 Nov 2026 01:20:39 GMT\r\nserver: uvicorn\r\n"
                     "content-length: %zu\r\ncontent-type: application/json\r\n\r\n",
                     status, n);
    return transmit(c, head, h, body, n);
}

// A chat completion of exactly `size` bytes (or a little more, if that is too few for one).
static int answer_chat(Conn *c, long size) {
    static const char before[] =
        "{\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion\",\"created\":1764460000,"
        "\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
        "\"content\":\"";
    static const char after[] =
        "\",\"reasoning_content\":null,\"tool_calls\":null},\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"matched_stop\":null}],\"usage\":{\"prompt_tokens\":12,"
        "\"total_tokens\":28,\"completion_tokens\":16,\"prompt_tokens_details\":null},"
        "\"metadata\":{\"weight_version\":\"" WEIGHT_VERSION "\"}}";
    static char *made;  // the last answer; of the next one of this size only the id differs
    static size_t made_len;
    static long made_size = -1;
    char start[256];
    int n = snprintf(start, sizeof start, before, (unsigned long long)c->id);
    if (made_size != size) {
        long fill = size - n - (long)(sizeof after - 1);
        if (fill < 0) fill = 0;
        if (fill > MAX_ANSWER) fill = MAX_ANSWER;
        made_size = size;
        made_len = n + fill + sizeof after - 1;
        made = grown(made, made_len + 1);
        for (long i = 0; i < fill; i++) made[n + i] = "some words "[i % 11];
        memcpy(made + n + fill, after, sizeof after);
    }
    memcpy(made, start, n);
    return answer_json(c, "200 OK", made, made_len);
}

static int answer_other(Conn *c) {
    static const struct {
        const char *path, *body;
    } known[] = {
        {"/v1/models", "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\","
                       "\"created\":1764460000,\"owned_by\":\"sglang\",\"root\":\"" MODEL "\","
                       "\"max_model_len\":32768}]}"},
        {"/model_info", "{\"model_path\":\"" MODEL "\",\"served_model_name\":\"" MODEL "\","
                        "\"tokenizer_path\":\"" MODEL "\",\"is_generation\":true,"
                        "\"weight_version\":\"" WEIGHT_VERSION "\"}"},
        {"/get_model_info", "{\"model_path\":\"" MODEL "\",\"tokenizer_path\":\"" MODEL "\","
                            "\"is_generation\":true,\"weight_version\":\"" WEIGHT_VERSION "\"}"},
        {"/server_info", "{\"model_path\":\"" MODEL "\",\"served_model_name\":\"" MODEL "\","
                         "\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5.5\",\"status\":\"ready\"}"},
        {"/get_server_info", "{\"model_path\":\"" MODEL "\",\"served_model_name\":\"" MODEL "\","
                             "\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5.5\"}"},
        {"/get_load", "[{\"dp_rank\":0,\"num_reqs\":0,\"num_waiting_reqs\":0,\"num_tokens\":0}]"},
        {"/health", "{\"status\":\"ok\"}"},
        {"/health_generate", "{\"status\":\"ok\"}"},
    };
    const char *path = memchr(c->in, ' ', c->head_len);
    for (size_t i = 0; path && i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].path);
        if (!strncmp(path + 1, known[i].path, n) && strchr(" ?", path[1 + n]))
            return answer_json(c, "200 OK", known[i].body, strlen(known[i].body));
    }
    static const char unknown[] = "{\"detail\":\"Not Found\"}";
    return answer_json(c, "404 Not Found", unknown, sizeof unknown - 1);
}

// The first bytes of a stream and its first chunk go together.
static const char stream_head[] =
    "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 01:20:39 GMT\r\nserver: uvicorn\r\n"
    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

// Send the next chunk, or the end. 0: goes on; 1: that was the end; -1: the connection is broken.
static int stream_on(Conn *c) {
    char chunk[512];
    if (c->sent == c->chunks) {
        int n = snprintf(chunk, sizeof chunk, "%zx\r\n" DONE "\r\n0\r\n\r\n", sizeof DONE - 1);
        c->chunks = 0;
        return transmit(c, chunk, n, "", 0) ? -1 : 1;
    }
    int n = snprintf(chunk, sizeof chunk, "%zx\r\n" EVENT "\r\n", event_len,
                     (unsigned long long)c->id, c->sent, (unsigned long long)now_ns());
    int broken = c->sent ? transmit(c, chunk, n, "", 0)
                         : transmit(c, stream_head, sizeof stream_head - 1, chunk, n);
    c->sent++;
    return broken ? -1 : 0;
}

static int answer_stream(Conn *c, long chunks, long interval_us) {
    c->chunks = chunks;
    c->sent = 0;
    c->interval = (uint64_t)(interval_us > 0 ? interval_us : 1) * 1000;
    if (stream_on(c) < 0) return -1;
    c->due = now_ns() + c->interval;
    heap_add(c);
    return 0;
}

// ---------------------------------------------------------------------------------- requests

// Find out how long the request at the start of the buffer is. 0: not yet known; -1: it is odd.
static int measure_request(Conn *c) {
    char *head_end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!head_end) return 0;
    long body = 0;
    c->head_len = head_end + 4 - c->in;
    c->close_after = 0;
    for (char *line = c->in; line < head_end;) {
        char *next = (char *)memchr(line, '\n', head_end + 2 - line) + 1;
        if (!strncasecmp(line, "content-length:", 15)) body = strtol(line + 15, NULL, 10);
        if (!strncasecmp(line, "connection: close", 17)) c->close_after = 1;
        if (!strncasecmp(line, "transfer-encoding:", 18)) return -1;
        line = next;
    }
    if (body < 0 || body > MAX_REQUEST) return -1;
    c->request_len = c->head_len + body;
    return 1;
}

static int answer(Conn *c) {
    long size = 1024, chunks = 0, interval = 20000;
    c->id = ++requests;
    if (strncmp(c->in, "POST ", 5)) return answer_other(c);
    char *order = memmem(c->in + c->head_len, c->request_len - c->head_len, "answer=", 7);
    if (order) sscanf(order, "answer=%ld chunks=%ld interval=%ld", &size, &chunks, &interval);
    return chunks > 0 ? answer_stream(c, chunks, interval) : answer_chat(c, size);
}

// Answer every whole request in the buffer, in order; the next one waits while a stream runs.
static int serve(Conn *c) {
    while (!c->chunks && c->in_len) {
        if (!c->request_len) {
            int known = measure_request(c);
            if (known < 0) {
                static const char why[] = "{\"detail\":\"needs Content-Length\"}";
                answer_json(c, "400 Bad Request", why, sizeof why - 1);
                return -1;
            }
            if (!known) return 0;
        }
        if (c->in_len < c->request_len) return 0;
        if (answer(c) || (c->close_after && !c->chunks)) return -1;
        c->in_len -= c->request_len;
        memmove(c->in, c->in + c->request_len, c->in_len);
        c->request_len = 0;
    }
    return 0;
}

static int receive(Conn *c) {
    for (;;) {
        if (c->in_cap - c->in_len < 4096) c->in = grown(c->in, (c->in_cap *= 2) + 1);
        size_t room = c->in_cap - c->in_len;
        ssize_t r = recv(c->fd, c->in + c->in_len, room, 0);
        if (r == 0 || (r < 0 && errno != EAGAIN)) return -1;
        if (r > 0) c->in_len += r;
        c->in[c->in_len] = 0;
        if (r < (ssize_t)room) return 0;
    }
}

static void take_in(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        Conn *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        c->heap_at = -1;
        c->in_cap = 8192;
        c->in = grown(NULL, c->in_cap + 1);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e)) end(c);
    }
}

// ---------------------------------------------------------------------------------- the loop

static void send_what_is_due(void) {
    for (uint64_t t = now_ns(); heap_len && heap[0]->due <= t;) {
        Conn *c = heap[0];
        int state = stream_on(c);
        if (state == 0) {
            c->due += c->interval;
            sift_down(0, c);
            continue;
        }
        heap_remove(c);
        if (state < 0 || c->close_after || serve(c)) end(c);
    }
}

static int wait_for(struct epoll_event *events, int n) {
    if (!heap_len) return epoll_wait(poller, events, n, -1);
    uint64_t t = now_ns(), left = heap[0]->due > t ? heap[0]->due - t : 0;
#ifdef SYS_epoll_pwait2
    struct timespec limit = {.tv_sec = left / 1000000000ull, .tv_nsec = left % 1000000000ull};
    int got = syscall(SYS_epoll_pwait2, poller, events, n, &limit, NULL, 0);
    if (got >= 0 || errno != ENOSYS) return got;
#endif
    return epoll_wait(poller, events, n, (int)((left + 999999) / 1000000));
}

static int listen_on(int port, int *taken) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (void *)&here, sizeof here) || listen(fd, 4096)) die("listen");
    getsockname(fd, (void *)&here, &size);
    *taken = ntohs(here.sin_port);
    return fd;
}

int main(int argc, char **argv) {
    unsigned life = 3600;
    for (int o; (o = getopt(argc, argv, "l:")) > 0;) {
        if (o == 'l') life = strtoul(optarg, NULL, 10);
        else return 2;
    }
    int count = argc - optind;
    if (count < 1 || count > MAX_PORTS) {
        fprintf(stderr, "usage: engine [-l LIFE_SECONDS] PORT...\n");
        return 2;
    }
    live_at_most(life);
    event_len = snprintf(NULL, 0, EVENT, 0ull, 0l, 0ull);
    poller = epoll_create1(EPOLL_CLOEXEC);

    // Two kinds of things are watched: these, which are told by their address, and connections.
    static int listeners[MAX_PORTS], input;
    for (int i = 0, port; i < count; i++) {
        listeners[i] = listen_on(atoi(argv[optind + i]), &port);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &listeners[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, listeners[i], &e)) die("epoll_ctl");
        printf("%s%d", i ? "," : "{\"model\":\"" MODEL "\",\"weight_version\":\"" WEIGHT_VERSION
                                 "\",\"ports\":[", port);
    }
    printf("]}\n");
    fflush(stdout);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &input};
    epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &e);  // refused for files: then never ends

    for (struct epoll_event events[256];;) {
        int n = wait_for(events, 256);
        for (int i = 0; i < n; i++) {
            int *what = events[i].data.ptr;
            Conn *c = events[i].data.ptr;
            if (what == &input) {
                if (input_ended()) return 0;
            } else if (what >= listeners && what < listeners + count) {
                take_in(*what);
            } else {
                int broken = (events[i].events & EPOLLOUT) && flush(c);
                if (!broken && (events[i].events & ~EPOLLOUT)) broken = receive(c) || serve(c);
                if (broken) end(c);
            }
        }
        send_what_is_due();
    }
}
