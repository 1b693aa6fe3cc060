// SPDX-License-Identifier: Apache-2.0
//
// Load for an image server: keep-alive connections, one thread each, that send requests for some time.
//
//   load tls:PORT|unix:PATH TICKET put|get|zero SIZE CONNECTIONS SECONDS LENGTH PID
//
// SIZE: bytes of each request; LENGTH: bytes of the image. Requests go through the image in order, from one counter for
// all connections, and start again at its end. PID: the server, whose processor time is read at both ends of the
// measured time. Like the known importers, a connection starts with OPTIONS, which is not measured, and a PUT does not
// flush; one flush follows the last request, timed by itself. Prints one JSON object.
//
// It shall cost little, for it shares the processors with the server: data is one chunk that stays in the cache,
// nothing is verified but status and length. Over TLS, cipher text is gathered, so that a chunk is one system call, and
// a head with a small body one packet: median 0.45 s/GiB, 0.50 without. Reading ahead was tried for downloads: 0.74
// s/GiB, 0.64 without. Both were measured on a busy machine, in 3 and 6 turns whose ranges overlap: measure again.

#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK = 256 * 1024,  // fits into a second-level cache; other sizes were not tried
    RECORDS = 2 * CHUNK, // cipher text gathered for one system call: a chunk, its TLS records' overhead, a head
    MAX_HEAD = 16 * 1024,
    MAX_CONNECTIONS = 64,
};

enum operation { PUT, GET, ZERO };

struct connection {
    int fd;
    SSL *ssl; // NULL on a unix socket
    pthread_t thread;
    double *latencies; // seconds
    size_t count, capacity;
    size_t head_end, received; // what `input` holds
    char input[MAX_HEAD];
    char chunk[CHUNK]; // where bodies of answers go
};

static const char *address, *ticket;
static enum operation operation;
static uint64_t size, length;
static double seconds;
static int connection_count, server_pid;

static struct connection *connections[MAX_CONNECTIONS];
static SSL_CTX *context;
static char data[CHUNK];
static atomic_uint_fast64_t next_request;
static pthread_barrier_t ready, go;
static double deadline;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double own_cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

// Seconds that all threads of the server have used, of those that ended too: proc(5), utime and stime.
static double server_cpu(void) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", server_pid);
    FILE *file = fopen(path, "re");
    if (!file)
        die("the server has ended: %s: %m", path);
    size_t got = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[got] = 0;
    unsigned long user, system;
    const char *fields = strrchr(text, ')');
    if (!fields || sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        die("unexpected %s", path);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

// Connections

static int connect_unix(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(to.sun_path))
        die("too long: %s", path);
    strcpy(to.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("cannot connect to %s: %m", path);
    return fd;
}

static int connect_tcp(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("cannot connect to port %s: %m", port);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static SSL *start_tls(int fd) {
    SSL *ssl = SSL_new(context);
    BIO *from = BIO_new_socket(fd, BIO_NOCLOSE), *to = BIO_new_socket(fd, BIO_NOCLOSE);
    BIO *gather = BIO_new(BIO_f_buffer());
    if (!ssl || !from || !to || !gather || BIO_set_write_buffer_size(gather, RECORDS) != 1)
        die("out of memory");
    SSL_set_bio(ssl, from, BIO_push(gather, to));
    if (SSL_connect(ssl) != 1)
        die("TLS handshake failed");
    return ssl;
}

static struct connection *make_connection(void) {
    struct connection *c = calloc(1, sizeof(*c));
    if (!c)
        die("out of memory");
    if (!strncmp(address, "unix:", 5)) {
        c->fd = connect_unix(address + 5);
    } else if (!strncmp(address, "tls:", 4)) {
        c->fd = connect_tcp(address + 4);
        c->ssl = start_tls(c->fd);
    } else {
        die("address is neither unix: nor tls: but %s", address);
    }
    return c;
}

static void write_all(struct connection *c, const char *from, size_t count) {
    while (count > 0) {
        ssize_t done = c->ssl ? SSL_write(c->ssl, from, (int)count) : write(c->fd, from, count);
        if (done <= 0)
            die("cannot send: %m");
        from += done;
        count -= (size_t)done;
    }
}

// Send a head with the first part of its body: one system call for a small request on either socket.
static void write_head(struct connection *c, const char *head, size_t count, size_t part) {
    if (!c->ssl) {
        struct iovec pieces[] = {{(void *)head, count}, {data, part}};
        ssize_t done = writev(c->fd, pieces, 2);
        if (done < (ssize_t)count)
            die("cannot send: %m");
        write_all(c, data + (done - (ssize_t)count), count + part - (size_t)done);
    } else {
        write_all(c, head, count);
        write_all(c, data, part);
    }
}

static void flush_records(struct connection *c) {
    if (c->ssl && BIO_flush(SSL_get_wbio(c->ssl)) != 1)
        die("cannot send: %m");
}

static size_t read_some(struct connection *c, char *to, size_t count) {
    ssize_t done = c->ssl ? SSL_read(c->ssl, to, (int)count) : read(c->fd, to, count);
    if (done <= 0)
        die("the connection ended before the answer did");
    return (size_t)done;
}

// Requests

static uint64_t content_length(const char *head) {
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, "content-length:", 15))
            return strtoull(line + 17, NULL, 10);
    die("no Content-Length in the answer: %s", head);
}

// Read the answer's head and return how many bytes of its body are still to be read.
static uint64_t read_head(struct connection *c) {
    char *end = NULL;
    c->received = 0;
    while (!end) {
        if (c->received == sizeof(c->input) - 1)
            die("the answer's head is too large");
        c->received += read_some(c, c->input + c->received, sizeof(c->input) - 1 - c->received);
        c->input[c->received] = 0;
        end = strstr(c->input, "\r\n\r\n");
    }
    if (strncmp(c->input, "HTTP/1.1 20", 11))
        die("refused: %s", c->input);
    uint64_t body = content_length(c->input), here = c->received - (size_t)(end + 4 - c->input);
    if (here > body)
        die("more was sent than the answer's length");
    return body - here;
}

static void read_answer(struct connection *c) {
    for (uint64_t left = read_head(c); left > 0;)
        left -= read_some(c, c->chunk, left < CHUNK ? left : CHUNK);
}

// Send a request whose body is text, and read the answer.
static void exchange(struct connection *c, const char *method, const char *body) {
    char text[1024];
    int count = snprintf(
        text, sizeof(text),
        "%s /images/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
        method, ticket, strlen(body), body);
    write_all(c, text, (size_t)count);
    flush_records(c);
    read_answer(c);
}

static void put(struct connection *c, uint64_t offset) {
    char head[1024];
    int count = snprintf(head, sizeof(head),
                         "PUT /images/%s?flush=n HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Type: application/octet-stream\r\nContent-Length: %lu\r\n"
                         "Content-Range: bytes %lu-%lu/*\r\n\r\n",
                         ticket, size, offset, offset + size - 1);
    write_head(c, head, (size_t)count, size < CHUNK ? size : CHUNK);
    for (uint64_t left = size < CHUNK ? 0 : size - CHUNK; left > 0;) {
        size_t part = left < CHUNK ? left : CHUNK;
        write_all(c, data, part);
        left -= part;
    }
    flush_records(c);
    read_answer(c);
}

static void get(struct connection *c, uint64_t offset) {
    char head[1024];
    int count =
        snprintf(head, sizeof(head), "GET /images/%s HTTP/1.1\r\nHost: localhost\r\nRange: bytes=%lu-%lu\r\n\r\n",
                 ticket, offset, offset + size - 1);
    write_all(c, head, (size_t)count);
    flush_records(c);
    read_answer(c);
    if (strncmp(c->input, "HTTP/1.1 206", 12) || content_length(c->input) != size)
        die("not the range that was asked for: %s", c->input);
}

static void zero(struct connection *c, uint64_t offset) {
    char body[128];
    snprintf(body, sizeof(body), "{\"op\": \"zero\", \"offset\": %lu, \"size\": %lu, \"flush\": false}", offset, size);
    exchange(c, "PATCH", body);
}

static void record(struct connection *c, double latency) {
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 4096;
        c->latencies = realloc(c->latencies, c->capacity * sizeof(double));
        if (!c->latencies)
            die("out of memory");
    }
    c->latencies[c->count++] = latency;
}

static void *run_connection(void *argument) {
    static void (*const request[])(struct connection *, uint64_t) = {put, get, zero};
    struct connection *c = argument;
    exchange(c, "OPTIONS", "");
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&go);
    for (double start = now(), end; start < deadline; start = end) {
        request[operation](c, atomic_fetch_add(&next_request, 1) % (length / size) * size);
        end = now();
        record(c, end - start);
    }
    return NULL;
}

// Results

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted_latencies(size_t *count) {
    size_t total = 0;
    for (int i = 0; i < connection_count; i++)
        total += connections[i]->count;
    double *all = malloc(total * sizeof(double));
    if (!all)
        die("out of memory");
    *count = 0;
    for (int i = 0; i < connection_count; i++) {
        memcpy(all + *count, connections[i]->latencies, connections[i]->count * sizeof(double));
        *count += connections[i]->count;
    }
    qsort(all, total, sizeof(double), compare);
    return all;
}

static void run(void) {
    for (int i = 0; i < connection_count; i++) {
        connections[i] = make_connection();
        if (pthread_create(&connections[i]->thread, NULL, run_connection, connections[i]))
            die("cannot start a thread");
    }
    pthread_barrier_wait(&ready);
    double server = server_cpu(), own = own_cpu(), start = now();
    deadline = start + seconds;
    pthread_barrier_wait(&go);
    for (int i = 0; i < connection_count; i++)
        pthread_join(connections[i]->thread, NULL);
    double end = now();
    own = own_cpu() - own;
    if (operation != GET)
        exchange(connections[0], "PATCH", "{\"op\": \"flush\"}");
    double flushed = now();
    server = server_cpu() - server;
    size_t count;
    double *latencies = sorted_latencies(&count);
    printf("{\"requests\": %zu, \"seconds\": %.6f, \"flush_seconds\": %.6f, \"server_cpu\": %.2f, \"load_cpu\": %.6f, "
           "\"p50\": %.7f, \"p99\": %.7f}\n",
           count, end - start, flushed - end, server, own, latencies[count / 2], latencies[count * 99 / 100]);
}

static enum operation parse_operation(const char *name) {
    static const char *const names[] = {"put", "get", "zero"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i]))
            return (enum operation)i;
    die("unknown operation %s", name);
}

int main(int argc, char **argv) {
    if (argc != 9)
        die("usage: load tls:PORT|unix:PATH TICKET put|get|zero SIZE CONNECTIONS SECONDS LENGTH PID");
    address = argv[1];
    ticket = argv[2];
    operation = parse_operation(argv[3]);
    size = strtoull(argv[4], NULL, 10);
    connection_count = atoi(argv[5]);
    seconds = atof(argv[6]);
    length = strtoull(argv[7], NULL, 10);
    server_pid = atoi(argv[8]);
    if (size == 0 || size > length || connection_count < 1 || connection_count > MAX_CONNECTIONS || seconds <= 0)
        die("a number is out of its range");
    // Not zeros: a server might look for them.
    for (size_t i = 0; i < CHUNK; i += 256)
        if (getrandom(data + i, 256, 0) != 256)
            die("no random data: %m");
    context = SSL_CTX_new(TLS_client_method()); // the certificate is not verified: both ends are ours, on loopback
    if (!context)
        die("no TLS");
    pthread_barrier_init(&ready, NULL, (unsigned)connection_count + 1);
    pthread_barrier_init(&go, NULL, (unsigned)connection_count + 1);
    run();
    return 0;
}
