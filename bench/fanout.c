/* Fan-out over SSE: N subscribers and one writer on one stream.
 *
 * Two threads. One reads all subscribers with epoll; the other is the writer,
 * so that the time of an acknowledgement is not the time of our own queue of
 * subscribers. Every message starts with a marker (`~` and eight digits that
 * count up), because a server may put several messages into one event; each
 * subscriber must see every number once and in order, or the run fails.
 *
 *   1. quiet  ACK_EVENTS posts while nobody listens: the acknowledgement alone
 *   2. paced  LATENCY_EVENTS posts, each when all have the one before:
 *             acknowledgement, and time until the last subscriber has it
 *   3. burst  BURST_EVENTS posts back to back: deliveries per second
 *
 * The phases are announced on stderr ("phase burst"). With --wait-for-stdin each
 * one starts only after a line on stdin, so that the caller can read the server's
 * CPU time in between. One JSON line is printed on stdout. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http1.h"

#define MARKER '~'
#define MARKER_DIGITS 8
#define REQUEST_BYTES_MAX 1024
#define RECEIVE_BYTES (256 * 1024)
#define CONNECT_BATCH 50       /* subscribers that connect before we wait for them */
#define WAIT_SECONDS_MAX 60    /* for subscribers to be ready, for events to arrive */
#define EVENTS_MAX 100000

struct options {
    const char *host;
    int port;
    const char *path;
    const char *subscribe_to; /* where subscribers listen, if not at the path */
    const char *query;
    const char *content_type;
    int subscribers;
    int ack_events;
    int latency_events;
    int burst_events;
    int body_bytes;
    double gap_ms;
    bool wait_for_stdin;
};

struct subscriber {
    int fd;
    bool ready;        /* answered 200 and sent its first event */
    bool line_ended;   /* the last body byte was LF: another one ends an event */
    int digits;        /* digits of a marker read so far; -1: not in a marker */
    uint32_t number;
    uint32_t expected; /* the next number this subscriber must see */
    struct http_reader reader;
};

static struct options options = {
    .host = "127.0.0.1",
    .path = "/v1/stream/fanout",
    .query = "?offset=now&live=sse",
    .content_type = "text/plain",
    .subscribers = 1000,
    .ack_events = 50,
    .latency_events = 12,
    .burst_events = 40,
    .body_bytes = 256,
    .gap_ms = 10,
};

static struct sockaddr_in server_address;
static struct subscriber *subscribers;
static int poller;
static int writer_fd;
static struct http_reader writer_reader;
static char *message;

/* Written by the reading thread, under the lock when the writer waits on it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static int *arrivals;             /* by event number: subscribers that have it */
static uint64_t *last_arrival_ns; /* by event number: when the last one got it */
static uint32_t ready_count;
static uint32_t complete_below;   /* all subscribers have every event below */
static uint64_t deliveries;
static uint64_t received_bytes;
static atomic_bool reading_ends;
static atomic_bool failed;

static uint32_t next_event; /* the writer's */

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "fanout: %s: %s\n", what, why);
    exit(1);
}

static void usage(const char *what)
{
    fprintf(stderr,
            "fanout: %s\n"
            "usage: fanout --port P [--host A] [--path /v1/stream/x] [--subscribe-to PATH] [--query Q]\n"
            "  [--subscribers N] [--ack-events K] [--latency-events K] [--burst-events K]\n"
            "  [--body-bytes B] [--gap-ms G] [--content-type T] [--wait-for-stdin]\n",
            what);
    exit(2);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};
    nanosleep(&t, NULL);
}

static int open_socket(void)
{
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail("socket", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&server_address, sizeof server_address) != 0)
        fail("connect", strerror(errno));
    return fd;
}

static void send_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            fail("send", strerror(errno));
        bytes += n;
        count -= (size_t)n;
    }
}

/* --- subscribers: everything below runs in the reading thread -------------------- */

static void event_arrived(struct subscriber *s)
{
    uint32_t number = s->number;
    if (number != s->expected || number >= EVENTS_MAX) {
        fprintf(stderr, "fanout: a subscriber expected event %u and got %u\n", s->expected,
                number);
        atomic_store(&failed, true);
        return;
    }
    s->expected++;
    deliveries++;
    if (++arrivals[number] < options.subscribers)
        return;
    last_arrival_ns[number] = now_ns();
    pthread_mutex_lock(&lock);
    complete_below = number + 1;
    pthread_cond_signal(&progress);
    pthread_mutex_unlock(&lock);
}

static void became_ready(struct subscriber *s)
{
    s->ready = true;
    pthread_mutex_lock(&lock);
    ready_count++;
    pthread_cond_signal(&progress);
    pthread_mutex_unlock(&lock);
}

/* Before it is ready a subscriber gets its first event, which carries no message. */
static void watch_for_first_event(struct subscriber *s, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && !s->ready; i++) {
        bool line_ends = bytes[i] == '\n';
        if (line_ends && s->line_ended)
            became_ready(s);
        if (bytes[i] != '\r')
            s->line_ended = line_ends;
    }
}

/* Markers may be cut anywhere by chunks and packets. */
static void count_markers(void *context, const char *bytes, size_t count)
{
    struct subscriber *s = context;
    if (!s->ready)
        watch_for_first_event(s, bytes, count);
    const char *end = bytes + count;
    for (const char *at = bytes; at < end;) {
        if (s->digits < 0) {
            at = memchr(at, MARKER, (size_t)(end - at));
            if (at == NULL)
                return;
            at++;
            s->digits = 0;
            s->number = 0;
            continue;
        }
        if (*at < '0' || *at > '9') {
            fprintf(stderr, "fanout: a marker without its number\n");
            atomic_store(&failed, true);
            s->digits = -1;
            continue;
        }
        s->number = s->number * 10 + (uint32_t)(*at++ - '0');
        if (++s->digits == MARKER_DIGITS) {
            s->digits = -1;
            event_arrived(s);
        }
    }
}

static void subscriber_broke(struct subscriber *s, const char *why)
{
    fprintf(stderr, "fanout: a subscriber's connection ended: %s\n", why);
    atomic_store(&failed, true);
    close(s->fd);
    s->fd = -1;
}

static void receive(struct subscriber *s, char *buffer)
{
    ssize_t n = recv(s->fd, buffer, RECEIVE_BYTES, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        subscriber_broke(s, n == 0 ? "closed by the server" : strerror(errno));
        return;
    }
    received_bytes += (uint64_t)n;
    http_feed(&s->reader, buffer, (size_t)n, count_markers, s);
    if (s->reader.state == HTTP_BROKEN)
        subscriber_broke(s, s->reader.why);
    else if (s->reader.state == HTTP_DONE)
        subscriber_broke(s, "the response is complete");
    else if (s->reader.status != 0 && s->reader.status != 200)
        subscriber_broke(s, "status is not 200");
}

static void *read_subscribers(void *unused)
{
    struct epoll_event events[128];
    char *buffer = malloc(RECEIVE_BYTES);
    if (buffer == NULL)
        fail("malloc", "no memory");
    while (!atomic_load(&reading_ends)) {
        int ready = epoll_wait(poller, events, 128, 50);
        for (int i = 0; i < ready; i++) {
            struct subscriber *s = events[i].data.ptr;
            if (s->fd >= 0)
                receive(s, buffer);
        }
    }
    free(buffer);
    return unused;
}

/* --- the writer: everything below runs in the main thread -------------------------- */

static struct timespec wait_limit(void)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 1;
    return limit;
}

/* Waits until *counter reaches `goal`; the reading thread signals. */
static void wait_for(const char *what, const volatile uint32_t *counter, uint32_t goal)
{
    uint64_t start = now_ns();
    pthread_mutex_lock(&lock);
    while (*counter < goal) {
        if (atomic_load(&failed))
            fail(what, "a subscriber failed");
        if (now_ns() - start > (uint64_t)WAIT_SECONDS_MAX * 1000000000u)
            fail(what, "took too long");
        struct timespec limit = wait_limit();
        pthread_cond_timedwait(&progress, &lock, &limit);
    }
    pthread_mutex_unlock(&lock);
}

static void subscribe(struct subscriber *s)
{
    char request[REQUEST_BYTES_MAX];
    int n = snprintf(request, sizeof request,
                     "GET %s%s HTTP/1.1\r\nHost: %s:%d\r\nAccept: text/event-stream\r\n\r\n",
                     options.subscribe_to ? options.subscribe_to : options.path, options.query,
                     options.host, options.port);
    s->digits = -1;
    s->expected = next_event;
    http_reset(&s->reader);
    s->fd = open_socket();
    send_all(s->fd, request, (size_t)n);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &event) != 0)
        fail("epoll_ctl", strerror(errno));
}

static void subscribe_all(void)
{
    for (int i = 0; i < options.subscribers; i++) {
        subscribe(&subscribers[i]);
        if ((i + 1) % CONNECT_BATCH == 0 || i + 1 == options.subscribers)
            wait_for("subscribing", &ready_count, (uint32_t)i + 1);
    }
}

static void read_acknowledgement(void)
{
    char buffer[4096];
    http_reset(&writer_reader);
    while (writer_reader.state != HTTP_DONE) {
        ssize_t n = recv(writer_fd, buffer, sizeof buffer, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            fail("the writer's connection", n == 0 ? "closed by the server" : strerror(errno));
        size_t taken = http_feed(&writer_reader, buffer, (size_t)n, NULL, NULL);
        if (writer_reader.state == HTTP_BROKEN)
            fail("the writer's answer", writer_reader.why);
        if (taken < (size_t)n)
            fail("the writer's answer", "bytes after its end");
    }
    if (writer_reader.status != 204 && writer_reader.status != 200)
        fail("the writer's answer", "status is not 204");
    if (!writer_reader.keep_alive) {
        close(writer_fd);
        writer_fd = open_socket();
    }
}

static bool is_json(void)
{
    return strcmp(options.content_type, "application/json") == 0;
}

/* Sends the next event; returns the time it was sent. */
static uint64_t post(void)
{
    char head[REQUEST_BYTES_MAX];
    char request[REQUEST_BYTES_MAX + 65536];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: %s\r\n"
                     "Content-Length: %d\r\n\r\n",
                     options.path, options.host, options.port, options.content_type,
                     options.body_bytes);
    char number[MARKER_DIGITS + 2];
    snprintf(number, sizeof number, "%c%08u", MARKER, next_event % 100000000u);
    memcpy(request, head, (size_t)n);
    memcpy(request + n, message, (size_t)options.body_bytes);
    memcpy(request + n + (is_json() ? 1 : 0), number, MARKER_DIGITS + 1);
    next_event++;
    uint64_t sent_ns = now_ns();
    send_all(writer_fd, request, (size_t)(n + options.body_bytes));
    return sent_ns;
}

static double post_and_wait_us(void)
{
    uint64_t sent_ns = post();
    read_acknowledgement();
    return (double)(now_ns() - sent_ns) / 1000.0;
}

static void announce(const char *phase)
{
    fprintf(stderr, "phase %s\n", phase);
    fflush(stderr);
    if (options.wait_for_stdin) {
        char line[16];
        if (fgets(line, sizeof line, stdin) == NULL)
            fail("stdin", "ended");
    }
}

static void run_quiet(double *acks_us)
{
    announce("quiet");
    for (int i = 0; i < options.ack_events; i++) {
        acks_us[i] = post_and_wait_us();
        sleep_ms(options.gap_ms);
    }
}

static void run_paced(double *acks_us, double *lasts_us)
{
    announce("paced");
    for (int i = 0; i < options.latency_events; i++) {
        uint32_t number = next_event;
        uint64_t sent_ns = post();
        read_acknowledgement();
        acks_us[i] = (double)(now_ns() - sent_ns) / 1000.0;
        if (options.subscribers > 0) {
            wait_for("an event", &complete_below, number + 1);
            lasts_us[i] = (double)(last_arrival_ns[number] - sent_ns) / 1000.0;
        }
        sleep_ms(options.gap_ms);
    }
}

static double run_burst(double *acks_us)
{
    announce("burst");
    uint64_t start = now_ns();
    for (int i = 0; i < options.burst_events; i++)
        acks_us[i] = post_and_wait_us();
    if (options.burst_events == 0 || options.subscribers == 0)
        return 0;
    wait_for("the burst", &complete_below, next_event);
    return (double)(last_arrival_ns[next_event - 1] - start) / 1e9;
}

/* --- the report ---------------------------------------------------------------------- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_spread(const char *name, double *values, int count)
{
    double p50 = 0, p99 = 0, max = 0;
    if (count > 0) {
        qsort(values, (size_t)count, sizeof *values, compare_double);
        p50 = values[(count - 1) / 2];
        p99 = values[(count * 99 + 99) / 100 - 1];
        max = values[count - 1];
    }
    printf("\"%s_p50_us\": %.1f, \"%s_p99_us\": %.1f, \"%s_max_us\": %.1f, ", name, p50, name,
           p99, name, max);
}

static double *new_times(int count)
{
    double *times = calloc((size_t)count + 1, sizeof *times);
    if (times == NULL)
        fail("calloc", "no memory");
    return times;
}

static void run_and_report(void)
{
    double *quiet_acks = new_times(options.ack_events);
    double *paced_acks = new_times(options.latency_events);
    double *lasts = new_times(options.latency_events);
    double *burst_acks = new_times(options.burst_events);
    pthread_t reading;

    run_quiet(quiet_acks);
    for (uint32_t i = 0; i < next_event; i++)
        arrivals[i] = options.subscribers; /* nobody was there to miss them */
    if (pthread_create(&reading, NULL, read_subscribers, NULL) != 0)
        fail("thread", "not started");
    subscribe_all();
    run_paced(paced_acks, lasts);
    uint64_t deliveries_before = deliveries;
    double seconds = run_burst(burst_acks);
    uint64_t burst_deliveries = deliveries - deliveries_before;
    announce("done");
    atomic_store(&reading_ends, true);
    pthread_join(reading, NULL);
    if (atomic_load(&failed))
        fail("the run", "see above");

    printf("{\"subscribers\": %d, ", options.subscribers);
    print_spread("quiet_ack", quiet_acks, options.ack_events);
    print_spread("paced_ack", paced_acks, options.latency_events);
    print_spread("last", lasts, options.latency_events);
    print_spread("burst_ack", burst_acks, options.burst_events);
    printf("\"burst_events\": %d, \"burst_seconds\": %.6f, \"deliveries\": %llu, "
           "\"deliveries_per_s\": %.1f, \"received_bytes\": %llu}\n",
           options.burst_events, seconds, (unsigned long long)burst_deliveries,
           seconds > 0 ? (double)burst_deliveries / seconds : 0,
           (unsigned long long)received_bytes);
}

/* --- start ------------------------------------------------------------------------------ */

static void parse_options(int argc, char **argv)
{
    static const struct option table[] = {
        {"host", 1, 0, 'h'},         {"port", 1, 0, 'p'},           {"path", 1, 0, 'x'},
        {"subscribe-to", 1, 0, 'f'}, {"query", 1, 0, 'q'},        {"content-type", 1, 0, 't'},   {"subscribers", 1, 0, 's'},
        {"ack-events", 1, 0, 'a'},   {"latency-events", 1, 0, 'l'}, {"burst-events", 1, 0, 'b'},
        {"body-bytes", 1, 0, 'B'},   {"gap-ms", 1, 0, 'g'},         {"wait-for-stdin", 0, 0, 'w'},
        {0, 0, 0, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case 'h': options.host = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'x': options.path = optarg; break;
        case 'q': options.query = optarg; break;
        case 'f': options.subscribe_to = optarg; break;
        case 't': options.content_type = optarg; break;
        case 's': options.subscribers = atoi(optarg); break;
        case 'a': options.ack_events = atoi(optarg); break;
        case 'l': options.latency_events = atoi(optarg); break;
        case 'b': options.burst_events = atoi(optarg); break;
        case 'B': options.body_bytes = atoi(optarg); break;
        case 'g': options.gap_ms = atof(optarg); break;
        case 'w': options.wait_for_stdin = true; break;
        default: usage("unknown option");
        }
    }
    if (options.port <= 0)
        usage("--port is needed");
    if (options.subscribers < 0 || options.ack_events < 0 || options.latency_events < 0 ||
        options.burst_events < 0)
        usage("counts start at 0");
    if (options.ack_events + options.latency_events + options.burst_events >= EVENTS_MAX)
        usage("too many events");
    if (options.body_bytes < MARKER_DIGITS + 1 || options.body_bytes > 65536)
        usage("--body-bytes is 9 to 65536");
    if (options.subscribe_to && strlen(options.subscribe_to) > 256)
        usage("--subscribe-to is too long");
    if (strlen(options.path) + strlen(options.query) + strlen(options.content_type) > 512)
        usage("path, query and content type are too long together");
}

static void prepare(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    server_address.sin_family = AF_INET;
    server_address.sin_port = htons((uint16_t)options.port);
    if (inet_pton(AF_INET, options.host, &server_address.sin_addr) != 1)
        usage("--host is an IPv4 address");
    poller = epoll_create1(EPOLL_CLOEXEC);
    subscribers = calloc((size_t)options.subscribers + 1, sizeof *subscribers);
    arrivals = calloc(EVENTS_MAX, sizeof *arrivals);
    last_arrival_ns = calloc(EVENTS_MAX, sizeof *last_arrival_ns);
    message = malloc((size_t)options.body_bytes);
    if (poller < 0 || !subscribers || !arrivals || !last_arrival_ns || !message)
        fail("prepare", "no memory");
    for (int i = 0; i < options.body_bytes; i++)
        message[i] = (char)('a' + i % 26);
    if (is_json()) /* the message is one string */
        message[0] = message[options.body_bytes - 1] = '"';
    writer_fd = open_socket();
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    prepare();
    run_and_report();
    return 0;
}
