/* A closed-loop S3P load generator: one thread, epoll, N connections.
 *
 *   s3p_load --mode append  APPEND of RECORDS x BODY_BYTES, DEPTH commands in flight
 *   s3p_load --mode read    READ of COUNT records from the beginning
 *   s3p_load --mode wake    READERS blocked in READ; a writer appends one record at a time
 *
 * Streams are NAME0 .. NAME(streams-1), in turn by connection. They must exist.
 * Every reply is read to its end, an error ends the run. One JSON line is printed. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_BYTES (256 * 1024)
#define LINE_MAX_BYTES 512
#define STALL_MS 30000
#define SETTLE_NS 150000000u /* until all blocked readers surely wait in the server */

enum mode { APPEND, READ, WAKE };

struct reply {
    char line[LINE_MAX_BYTES];
    size_t line_bytes;
    size_t skip;      /* payload bytes and CR LF to read over */
    uint64_t left;    /* elements of an array */
    uint64_t records; /* bulk strings of the reply so far */
    bool in_array;
};

struct connection {
    int fd;
    int in_flight;
    bool is_writer, is_probe;
    char *out;
    size_t out_bytes, out_at, out_room;
    uint64_t *started_ns; /* a ring of DEPTH */
    int oldest;
    struct reply reply;
    char *command;
    size_t command_bytes;
};

static struct {
    const char *name;
    int port;
    enum mode mode;
    int connections, depth, records, count, streams, readers, events;
    size_t body_bytes;
    double seconds, warmup_seconds;
} options = {.name = "bench-", .connections = 1, .depth = 1, .records = 1, .count = 1000, .streams = 1,
             .readers = 0, .events = 30, .body_bytes = 100};

static struct connection *connections;
static int poller;
static char receive_buffer[RECEIVE_BYTES];
static uint64_t start_ns, warm_ns, deadline_ns, last_ns;
static uint64_t answered, window_replies, window_records, replies_now;
static uint64_t *latencies_ns;
static size_t latency_count, latency_room;
static bool stopping;
static char last_id[64];

static void die(const char *what)
{
    fprintf(stderr, "s3p_load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void broken(const char *what, const char *text)
{
    fprintf(stderr, "s3p_load: %s: %s\n", what, text);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void keep_latency(uint64_t ns)
{
    if (latency_count == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 65536;
        latencies_ns = realloc(latencies_ns, latency_room * sizeof *latencies_ns);
        if (latencies_ns == NULL)
            die("realloc");
    }
    latencies_ns[latency_count++] = ns;
}

/* --- commands ------------------------------------------------------------------------ */

static void make_append(struct connection *c, int stream)
{
    char name[128];
    int name_bytes = snprintf(name, sizeof name, "%s%d", options.name, stream);
    size_t room = 256 + (size_t)options.records * (options.body_bytes + 32);
    char *at = c->command = malloc(room);
    at += sprintf(at, "*4\r\n$6\r\nAPPEND\r\n$%d\r\n%s\r\n*0\r\n*%d\r\n", name_bytes, name, options.records);
    for (int i = 0; i < options.records; i++) {
        at += sprintf(at, "$%zu\r\n", options.body_bytes);
        for (size_t b = 0; b < options.body_bytes; b++)
            *at++ = (char)('a' + (b * 7 + (size_t)i) % 26);
        *at++ = '\r';
        *at++ = '\n';
    }
    c->command_bytes = (size_t)(at - c->command);
}

static void make_read(struct connection *c, int stream, const char *after, int block_ms)
{
    char name[128], block[16], count[16];
    int name_bytes = snprintf(name, sizeof name, "%s%d", options.name, stream);
    int block_bytes = snprintf(block, sizeof block, "%d", block_ms);
    int count_bytes = snprintf(count, sizeof count, "%d", options.count);
    if (c->command == NULL)
        c->command = malloc(512);
    c->command_bytes = (size_t)sprintf(
        c->command,
        "*3\r\n$4\r\nREAD\r\n$%d\r\n%s\r\n*6\r\n$5\r\nCOUNT\r\n$%d\r\n%s\r\n$5\r\nBLOCK\r\n$%d\r\n%s\r\n"
        "$13\r\nMIN_TIMESTAMP\r\n$%zu\r\n%s\r\n",
        name_bytes, name, count_bytes, count, block_bytes, block, strlen(after), after);
}

static void watch(struct connection *c, bool writing)
{
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event) < 0)
        die("epoll_ctl");
}

static void flush(struct connection *c)
{
    while (c->out_at < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(c, true);
            return;
        }
        if (n < 0)
            die("send");
        c->out_at += (size_t)n;
    }
    if (c->out_at)
        watch(c, false);
    c->out_at = c->out_bytes = 0;
}

static void queue_command(struct connection *c, uint64_t now)
{
    if (c->out_bytes + c->command_bytes > c->out_room) {
        c->out_room = (c->out_bytes + c->command_bytes) * 2;
        c->out = realloc(c->out, c->out_room);
        if (c->out == NULL)
            die("realloc");
    }
    memcpy(c->out + c->out_bytes, c->command, c->command_bytes);
    c->out_bytes += c->command_bytes;
    c->started_ns[(c->oldest + c->in_flight) % options.depth] = now;
    c->in_flight++;
}

/* --- replies -------------------------------------------------------------------------- */

static void finished(struct connection *c, uint64_t now)
{
    uint64_t started = c->started_ns[c->oldest];
    c->oldest = (c->oldest + 1) % options.depth;
    c->in_flight--;
    answered++;
    last_ns = now;
    if (options.mode == WAKE) {
        replies_now += !c->is_writer && !c->is_probe;
        if (c->is_writer)
            keep_latency(now - started);
        else if (!c->is_probe && c->reply.records != 2)
            broken("a blocked reader got", "no record, or several");
        return;
    }
    if (options.mode == READ && c->reply.records != 2 * (uint64_t)options.count)
        broken("a READ returned", "fewer records than were asked for");
    if (now >= warm_ns && (deadline_ns == 0 || now < deadline_ns)) {
        window_replies++;
        window_records += options.mode == READ ? c->reply.records / 2 : (uint64_t)options.records;
        keep_latency(now - started);
    }
    if (deadline_ns != 0 && now >= deadline_ns)
        stopping = true;
    if (!stopping)
        queue_command(c, now);
}

static void take_line(struct connection *c, uint64_t now)
{
    struct reply *r = &c->reply;
    r->line[r->line_bytes - 2] = '\0';
    r->line_bytes = 0;
    if (r->line[0] == '$') {
        r->skip = strtoull(r->line + 1, NULL, 10) + 2;
        return;
    }
    if (r->line[0] == '*') {
        r->left = strtoull(r->line + 1, NULL, 10);
        r->records = r->left;
        r->in_array = r->left > 0;
        if (!r->in_array)
            finished(c, now);
        return;
    }
    broken("the server said", r->line);
}

static void feed(struct connection *c, const char *data, size_t bytes, uint64_t now)
{
    struct reply *r = &c->reply;
    const char *end = data + bytes;
    while (data < end) {
        if (r->skip > 0) {
            size_t here = (size_t)(end - data) < r->skip ? (size_t)(end - data) : r->skip;
            if (options.mode == WAKE && c->is_writer && here == r->skip && here < sizeof last_id) {
                memcpy(last_id, data, here - 2);
                last_id[here - 2] = '\0';
            }
            data += here;
            r->skip -= here;
            if (r->skip > 0)
                return;
            if (!r->in_array) {
                finished(c, now);
            } else if (--r->left == 0) {
                r->in_array = false;
                finished(c, now);
            }
            continue;
        }
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        size_t here = newline ? (size_t)(newline - data) + 1 : (size_t)(end - data);
        if (r->line_bytes + here > sizeof r->line)
            broken("a reply has a line", "that is too long");
        memcpy(r->line + r->line_bytes, data, here);
        r->line_bytes += here;
        data += here;
        if (newline)
            take_line(c, now);
    }
}

static void receive(struct connection *c)
{
    for (;;) {
        ssize_t n = recv(c->fd, receive_buffer, sizeof receive_buffer, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0)
            die("recv");
        if (n == 0)
            broken("a connection", "was closed by the server");
        feed(c, receive_buffer, (size_t)n, now_ns());
        flush(c);
        if ((size_t)n < sizeof receive_buffer)
            return;
    }
}

/* --- running --------------------------------------------------------------------------- */

static void open_connection(struct connection *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->started_ns = calloc((size_t)options.depth, sizeof *c->started_ns);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (c->started_ns == NULL || epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event) < 0)
        die("open");
}

static int poll_once(int timeout_ms)
{
    struct epoll_event events[256];
    int ready = epoll_wait(poller, events, 256, timeout_ms);
    if (ready < 0 && errno != EINTR)
        die("epoll_wait");
    for (int i = 0; i < ready; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT)
            flush(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            receive(c);
    }
    return ready;
}

static void run_closed_loop(void)
{
    for (int i = 0; i < options.connections; i++) {
        open_connection(&connections[i]);
        if (options.mode == APPEND)
            make_append(&connections[i], i % options.streams);
        else
            make_read(&connections[i], i % options.streams, "0-0", 0);
    }
    start_ns = now_ns();
    warm_ns = start_ns + (uint64_t)(options.warmup_seconds * 1e9);
    deadline_ns = warm_ns + (uint64_t)(options.seconds * 1e9);
    for (int i = 0; i < options.connections; i++) {
        for (int d = 0; d < options.depth; d++)
            queue_command(&connections[i], now_ns());
        flush(&connections[i]);
    }
    for (;;) {
        bool busy = false;
        for (int i = 0; i < options.connections; i++)
            busy |= connections[i].in_flight > 0;
        if (!busy)
            return;
        for (int turns = 0; turns < 64; turns++)
            if (poll_once(stopping ? 100 : STALL_MS) == 0) {
                if (!stopping)
                    broken("the server", "did not reply in time");
                break;
            }
    }
}

static void write_one(struct connection *writer)
{
    queue_command(writer, now_ns());
    flush(writer);
    while (writer->in_flight)
        if (poll_once(STALL_MS) == 0)
            broken("the server", "did not acknowledge in time");
}

static void pause_ns(uint64_t ns)
{
    uint64_t until = now_ns() + ns;
    while (now_ns() < until)
        poll_once(10);
}

/* Whatever was sent before is served once this connection's own reads are answered at once. */
static void wait_until_quiet(struct connection *probe)
{
    for (uint64_t took = UINT64_MAX; took > 2000000u;) {
        uint64_t began = now_ns();
        queue_command(probe, began);
        flush(probe);
        while (probe->in_flight)
            if (poll_once(STALL_MS) == 0)
                broken("the server", "did not answer in time");
        took = now_ns() - began;
    }
}

static double median_us(void);

static double quiet_us, woken_us, last_reader_us;

static void run_wake(void)
{
    struct connection *writer = &connections[0];
    writer->is_writer = true;
    open_connection(writer);
    make_append(writer, 0);
    for (int i = 0; i < options.events; i++) {
        write_one(writer);
        pause_ns(5000000u);
    }
    quiet_us = median_us();
    latency_count = 0;
    for (int i = 1; i <= options.readers; i++)
        open_connection(&connections[i]);
    struct connection *probe = &connections[options.readers + 1];
    open_connection(probe);
    probe->is_probe = true;
    make_read(probe, 0, "0-0", 0);
    uint64_t total_ns = 0;
    for (int event = 0; event < options.events; event++) {
        for (int i = 1; i <= options.readers; i++) {
            make_read(&connections[i], 0, last_id, 10000);
            queue_command(&connections[i], now_ns());
            flush(&connections[i]);
        }
        pause_ns(SETTLE_NS);
        wait_until_quiet(&connections[options.readers + 1]);
        uint64_t began = now_ns();
        replies_now = 0;
        write_one(writer);
        while (replies_now < (uint64_t)options.readers)
            if (poll_once(STALL_MS) == 0)
                broken("a blocked reader", "was not woken");
        total_ns += now_ns() - began;
    }
    woken_us = median_us();
    last_reader_us = (double)total_ns / 1000.0 / options.events;
}

/* --- the report ------------------------------------------------------------------------ */

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double share)
{
    if (latency_count == 0)
        return 0;
    qsort(latencies_ns, latency_count, sizeof *latencies_ns, compare_ns);
    size_t rank = (size_t)(share * (double)latency_count);
    return (double)latencies_ns[rank < latency_count ? rank : latency_count - 1] / 1000.0;
}

static double median_us(void)
{
    return percentile_us(0.5);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void print_report(double client_cpu_seconds)
{
    if (options.mode == WAKE) {
        printf("{\"quiet_ack_us\": %.1f, \"woken_ack_us\": %.1f, \"last_reader_us\": %.1f}\n", quiet_us, woken_us,
               last_reader_us);
        return;
    }
    double per_reply = answered ? client_cpu_seconds * 1e6 / (double)answered : 0;
    printf("{\"seconds\": %.6f, \"replies_total\": %llu, \"rate\": %.2f, \"records_per_s\": %.2f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"client_cpu_us\": %.2f}\n",
           options.seconds, (unsigned long long)answered, (double)window_replies / options.seconds,
           (double)window_records / options.seconds, percentile_us(0.5), percentile_us(0.99), per_reply);
}

int main(int argc, char **argv)
{
    static const struct option table[] = {
        {"port", 1, 0, 'p'},    {"mode", 1, 0, 'm'},    {"connections", 1, 0, 'c'}, {"depth", 1, 0, 'd'},
        {"records", 1, 0, 'r'}, {"count", 1, 0, 'n'},   {"streams", 1, 0, 's'},     {"name", 1, 0, 'x'},
        {"readers", 1, 0, 'R'}, {"events", 1, 0, 'e'},  {"body-bytes", 1, 0, 'b'},  {"seconds", 1, 0, 't'},
        {"warmup", 1, 0, 'w'},  {0, 0, 0, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case 'p': options.port = atoi(optarg); break;
        case 'm':
            options.mode = strcmp(optarg, "append") == 0 ? APPEND : strcmp(optarg, "read") == 0 ? READ : WAKE;
            break;
        case 'c': options.connections = atoi(optarg); break;
        case 'd': options.depth = atoi(optarg); break;
        case 'r': options.records = atoi(optarg); break;
        case 'n': options.count = atoi(optarg); break;
        case 's': options.streams = atoi(optarg); break;
        case 'x': options.name = optarg; break;
        case 'R': options.readers = atoi(optarg); break;
        case 'e': options.events = atoi(optarg); break;
        case 'b': options.body_bytes = strtoull(optarg, NULL, 10); break;
        case 't': options.seconds = atof(optarg); break;
        case 'w': options.warmup_seconds = atof(optarg); break;
        default: return 2;
        }
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int room = options.mode == WAKE ? options.readers + 2 : options.connections;
    connections = calloc((size_t)room, sizeof *connections);
    if (poller < 0 || connections == NULL || options.port <= 0)
        die("prepare");
    double before = cpu_seconds();
    if (options.mode == WAKE)
        run_wake();
    else
        run_closed_loop();
    print_report(cpu_seconds() - before);
    return 0;
}
