/* Reading HTTP/1.1 responses, for load.c and fanout.c.
 *
 * Feed it bytes as they come; it takes them up to the end of one response and
 * says how many it took. It knows Content-Length, chunked bodies with trailers,
 * bodies that end with the connection, statuses without a body, and interim
 * 1xx responses. A response that breaks the grammar turns the state to BROKEN,
 * and `why` says how. No sockets, no clocks here. */

#ifndef MILLSTREAM_BENCH_HTTP1_H
#define MILLSTREAM_BENCH_HTTP1_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#define HTTP_HEAD_BYTES_MAX 8192
#define HTTP_CHUNK_LINE_BYTES_MAX 1024

enum http_state {
    HTTP_HEAD,         /* collecting the status line and the headers */
    HTTP_LENGTH,       /* body with a Content-Length, `left` bytes to go */
    HTTP_CHUNK_LINE,   /* the line with a chunk's size */
    HTTP_CHUNK_DATA,   /* inside a chunk, `left` bytes to go */
    HTTP_CHUNK_END,    /* the CRLF after a chunk's data */
    HTTP_TRAILER,      /* lines after the last chunk, up to an empty one */
    HTTP_UNTIL_CLOSE,  /* the body ends when the peer closes */
    HTTP_DONE,
    HTTP_BROKEN,
};

typedef void (*http_body_sink)(void *context, const char *bytes, size_t count);

struct http_reader {
    enum http_state state;
    int status;
    bool keep_alive;
    uint64_t left;
    uint64_t body_bytes;
    const char *why;
    size_t line_bytes; /* bytes seen of the current chunk line or trailer line */
    bool line_has_size;
    bool line_in_extension;
    bool line_saw_cr;
    size_t head_bytes;
    char head[HTTP_HEAD_BYTES_MAX];
};

static inline void http_reset(struct http_reader *r)
{
    r->state = HTTP_HEAD;
    r->status = 0;
    r->keep_alive = true;
    r->left = 0;
    r->body_bytes = 0;
    r->why = NULL;
    r->head_bytes = 0;
}

static inline void http_break(struct http_reader *r, const char *why)
{
    r->state = HTTP_BROKEN;
    r->why = why;
}

static inline void http_begin_line(struct http_reader *r, enum http_state state)
{
    r->state = state;
    r->left = 0;
    r->line_bytes = 0;
    r->line_has_size = false;
    r->line_in_extension = false;
    r->line_saw_cr = false;
}

/* Whether the comma-separated list `value` holds `token`, in any case. */
static inline bool http_list_has(const char *value, size_t bytes, const char *token)
{
    size_t token_bytes = strlen(token);
    size_t at = 0;
    while (at < bytes) {
        while (at < bytes && (value[at] == ' ' || value[at] == '\t' || value[at] == ','))
            at++;
        size_t start = at;
        while (at < bytes && value[at] != ',')
            at++;
        size_t end = at;
        while (end > start && (value[end - 1] == ' ' || value[end - 1] == '\t'))
            end--;
        if (end - start == token_bytes && strncasecmp(value + start, token, token_bytes) == 0)
            return true;
    }
    return false;
}

static inline bool http_parse_decimal(const char *text, size_t bytes, uint64_t *out)
{
    if (bytes == 0 || bytes > 18)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *out = value;
    return true;
}

struct http_framing {
    bool has_length;
    bool chunked;
    uint64_t length;
};

static inline bool http_status_line(struct http_reader *r, const char *line, size_t bytes)
{
    if (bytes < 12 || memcmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
        line[8] != ' ')
        return false;
    uint64_t status;
    if (!http_parse_decimal(line + 9, 3, &status) || status < 100)
        return false;
    if (bytes > 12 && line[12] != ' ')
        return false;
    r->status = (int)status;
    r->keep_alive = line[7] == '1';
    return true;
}

/* One header line; only those that frame the message matter. */
static inline bool http_header_line(struct http_reader *r, struct http_framing *framing,
                                    const char *line, size_t bytes)
{
    const char *colon = memchr(line, ':', bytes);
    if (colon == NULL || colon == line)
        return false;
    size_t name_bytes = (size_t)(colon - line);
    const char *value = colon + 1;
    size_t value_bytes = bytes - name_bytes - 1;
    while (value_bytes > 0 && (*value == ' ' || *value == '\t'))
        value++, value_bytes--;
    while (value_bytes > 0 && (value[value_bytes - 1] == ' ' || value[value_bytes - 1] == '\t'))
        value_bytes--;

    if (name_bytes == 14 && strncasecmp(line, "content-length", 14) == 0) {
        uint64_t length;
        if (!http_parse_decimal(value, value_bytes, &length))
            return false;
        if (framing->has_length && framing->length != length)
            return false;
        framing->has_length = true;
        framing->length = length;
    } else if (name_bytes == 17 && strncasecmp(line, "transfer-encoding", 17) == 0) {
        framing->chunked = http_list_has(value, value_bytes, "chunked");
        if (!framing->chunked)
            return false;
    } else if (name_bytes == 10 && strncasecmp(line, "connection", 10) == 0) {
        if (http_list_has(value, value_bytes, "close"))
            r->keep_alive = false;
        else if (http_list_has(value, value_bytes, "keep-alive"))
            r->keep_alive = true;
    }
    return true;
}

static inline void http_choose_body(struct http_reader *r, const struct http_framing *framing)
{
    if (r->status < 200) { /* interim: the real response follows */
        http_reset(r);
    } else if (r->status == 204 || r->status == 304) {
        r->state = HTTP_DONE;
    } else if (framing->chunked) {
        http_begin_line(r, HTTP_CHUNK_LINE);
    } else if (framing->has_length) {
        r->left = framing->length;
        r->state = framing->length == 0 ? HTTP_DONE : HTTP_LENGTH;
    } else {
        r->keep_alive = false;
        r->state = HTTP_UNTIL_CLOSE;
    }
}

/* A whole head, the empty line included. */
static inline void http_parse_head(struct http_reader *r, const char *head, size_t bytes)
{
    struct http_framing framing = {false, false, 0};
    const char *at = head;
    const char *end = head + bytes - 2; /* without the empty line */
    bool first = true;
    while (at < end) {
        const char *eol = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (eol == NULL) {
            http_break(r, "header line without CRLF");
            return;
        }
        size_t line_bytes = (size_t)(eol - at);
        bool good = first ? http_status_line(r, at, line_bytes)
                          : http_header_line(r, &framing, at, line_bytes);
        if (!good) {
            http_break(r, first ? "bad status line" : "bad header line");
            return;
        }
        first = false;
        at = eol + 2;
    }
    if (first)
        http_break(r, "no status line");
    else
        http_choose_body(r, &framing);
}

static inline size_t http_feed_head(struct http_reader *r, const char *bytes, size_t count)
{
    if (r->head_bytes == 0) { /* the usual case: the whole head in one piece */
        const char *end = memmem(bytes, count, "\r\n\r\n", 4);
        if (end != NULL) {
            size_t head_bytes = (size_t)(end - bytes) + 4;
            http_parse_head(r, bytes, head_bytes);
            return head_bytes;
        }
    }
    size_t known = r->head_bytes;
    size_t room = HTTP_HEAD_BYTES_MAX - known;
    size_t taken = count < room ? count : room;
    memcpy(r->head + known, bytes, taken);
    size_t from = known < 3 ? 0 : known - 3;
    const char *end = memmem(r->head + from, known + taken - from, "\r\n\r\n", 4);
    if (end == NULL) {
        r->head_bytes += taken;
        if (r->head_bytes == HTTP_HEAD_BYTES_MAX)
            http_break(r, "head too long");
        return taken;
    }
    size_t head_bytes = (size_t)(end - r->head) + 4;
    r->head_bytes = 0; /* before parsing: an interim response starts anew */
    http_parse_head(r, r->head, head_bytes);
    return head_bytes - known;
}

static inline int http_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static inline void http_chunk_line_byte(struct http_reader *r, char c)
{
    if (++r->line_bytes > HTTP_CHUNK_LINE_BYTES_MAX) {
        http_break(r, "chunk line too long");
    } else if (r->line_saw_cr) {
        if (c != '\n' || !r->line_has_size)
            http_break(r, "bad chunk line");
        else if (r->left == 0)
            http_begin_line(r, HTTP_TRAILER);
        else
            r->state = HTTP_CHUNK_DATA;
    } else if (c == '\r') {
        r->line_saw_cr = true;
    } else if (c == ';' || c == ' ' || c == '\t') {
        r->line_in_extension = true;
    } else if (!r->line_in_extension) {
        int digit = http_hex(c);
        if (digit < 0 || r->left > (UINT64_MAX >> 8))
            http_break(r, "bad chunk size");
        r->left = r->left * 16 + (uint64_t)(digit < 0 ? 0 : digit);
        r->line_has_size = true;
    }
}

static inline void http_chunk_end_byte(struct http_reader *r, char c)
{
    if (!r->line_saw_cr && c == '\r')
        r->line_saw_cr = true;
    else if (r->line_saw_cr && c == '\n')
        http_begin_line(r, HTTP_CHUNK_LINE);
    else
        http_break(r, "no CRLF after a chunk");
}

static inline void http_trailer_byte(struct http_reader *r, char c)
{
    if (r->line_saw_cr) {
        if (c != '\n')
            http_break(r, "bad trailer");
        else if (r->line_bytes == 0)
            r->state = HTTP_DONE;
        else
            http_begin_line(r, HTTP_TRAILER);
    } else if (c == '\r') {
        r->line_saw_cr = true;
    } else if (++r->line_bytes > HTTP_CHUNK_LINE_BYTES_MAX) {
        http_break(r, "trailer too long");
    }
}

static inline size_t http_feed_body(struct http_reader *r, const char *bytes, size_t count,
                                    http_body_sink sink, void *context)
{
    size_t taken = count;
    if (r->state != HTTP_UNTIL_CLOSE && taken > r->left)
        taken = (size_t)r->left;
    r->body_bytes += taken;
    if (sink != NULL)
        sink(context, bytes, taken);
    if (r->state == HTTP_UNTIL_CLOSE)
        return taken;
    r->left -= taken;
    if (r->left == 0) {
        if (r->state == HTTP_LENGTH)
            r->state = HTTP_DONE;
        else
            http_begin_line(r, HTTP_CHUNK_END);
    }
    return taken;
}

/* Takes bytes up to the end of the response; returns how many it took. */
static inline size_t http_feed(struct http_reader *r, const char *bytes, size_t count,
                               http_body_sink sink, void *context)
{
    size_t at = 0;
    while (at < count && r->state != HTTP_DONE && r->state != HTTP_BROKEN) {
        switch (r->state) {
        case HTTP_HEAD:
            at += http_feed_head(r, bytes + at, count - at);
            break;
        case HTTP_CHUNK_LINE:
            http_chunk_line_byte(r, bytes[at++]);
            break;
        case HTTP_CHUNK_END:
            http_chunk_end_byte(r, bytes[at++]);
            break;
        case HTTP_TRAILER:
            http_trailer_byte(r, bytes[at++]);
            break;
        default:
            at += http_feed_body(r, bytes + at, count - at, sink, context);
        }
    }
    return at;
}

/* The peer closed: fine only for a body that ends that way. */
static inline void http_feed_close(struct http_reader *r)
{
    if (r->state == HTTP_UNTIL_CLOSE)
        r->state = HTTP_DONE;
    else if (r->state != HTTP_DONE)
        http_break(r, "connection closed inside a response");
}

#endif
