/* What this machine can do at most with one thread and files: takes RocketMQ's frames from sockets, appends their bytes
 * to files, and answers each frame with a ready-made success. It understands nothing but the frame's length and its
 * opaque, keeps no queues and no index: only the bytes are moved.
 *
 *     bound PORT FOLDER [sync]
 *
 * With `sync` the file is flushed (fdatasync) before the answers of a turn are sent. Segments of 1 GiB are allocated in
 * steps; those before the last three are deleted.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES (1 << 20)
#define SEGMENT_BYTES (1LL << 30)
#define STEP_BYTES (16LL << 20)
#define MAX_EVENTS 64
#define HEAD "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"DefaultRegion\","                 \
             "\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueOffset\":\"1000000\"},\"flag\":1,\"language\":\"JAVA\","     \
             "\"opaque\":"
#define TAIL ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}"
#define LABEL "\"opaque\":"
#define ANSWER_BYTES 512

struct connection {
    int fd;
    size_t filled, answered, answers_room;
    char *answers;
    char data[READ_BYTES];
};

static const char *folder;
static int segment_fd = -1, segment_number = -1;
static off_t segment_at, segment_allocated;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void next_segment(void) {
    char path[4096];
    if (segment_fd >= 0) close(segment_fd);
    segment_number++;
    snprintf(path, sizeof path, "%s/%08d", folder, segment_number - 3);
    if (segment_number >= 3) unlink(path);
    snprintf(path, sizeof path, "%s/%08d", folder, segment_number);
    segment_fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (segment_fd < 0) fail("open");
    segment_at = segment_allocated = 0;
}

static void append(const char *data, size_t size) {
    if (segment_fd < 0 || segment_at + (off_t)size > SEGMENT_BYTES) next_segment();
    while (segment_at + (off_t)size > segment_allocated) {
        if (fallocate(segment_fd, 0, segment_allocated, STEP_BYTES)) fail("fallocate");
        segment_allocated += STEP_BYTES;
    }
    while (size) {
        ssize_t done = pwrite(segment_fd, data, size, segment_at);
        if (done < 0) fail("pwrite");
        data += done, size -= (size_t)done, segment_at += done;
    }
}

/* Adds the answer to one frame; returns 0 when the frame has no opaque. */
static int answer(struct connection *c, const char *frame, size_t size) {
    const char *found = memmem(frame, size, LABEL, sizeof LABEL - 1);
    if (!found) return 0;
    const char *digits = found + sizeof LABEL - 1, *end = digits;
    while (end < frame + size && end - digits < 11 && (*end == '-' || (*end >= '0' && *end <= '9'))) end++;
    size_t width = (size_t)(end - digits), header = sizeof HEAD - 1 + width + sizeof TAIL - 1;
    if (c->answered + ANSWER_BYTES > c->answers_room) {
        c->answers_room = 2 * c->answers_room + ANSWER_BYTES;
        c->answers = realloc(c->answers, c->answers_room);
        if (!c->answers) fail("realloc");
    }
    uint32_t lengths[2] = {htonl((uint32_t)(4 + header)), htonl((uint32_t)header)};
    char *at = c->answers + c->answered;
    memcpy(at, lengths, 8);
    memcpy(at + 8, HEAD, sizeof HEAD - 1);
    memcpy(at + 8 + sizeof HEAD - 1, digits, width);
    memcpy(at + 8 + sizeof HEAD - 1 + width, TAIL, sizeof TAIL - 1);
    c->answered += 8 + header;
    return 1;
}

/* Reads once, appends all whole frames and prepares their answers; returns 0 when the connection is to be closed. */
static int serve(struct connection *c) {
    ssize_t got = recv(c->fd, c->data + c->filled, sizeof c->data - c->filled, 0);
    if (got <= 0) return 0;
    c->filled += (size_t)got;
    size_t at = 0;
    while (c->filled - at >= 8) {
        uint32_t length;
        memcpy(&length, c->data + at, 4);
        size_t size = (size_t)ntohl(length) + 4;
        if (size < 8 || size > sizeof c->data) return 0;
        if (c->filled - at < size) break;
        if (!answer(c, c->data + at + 8, size - 8)) return 0;
        at += size;
    }
    append(c->data, at);
    memmove(c->data, c->data + at, c->filled - at);
    c->filled -= at;
    return 1;
}

static void send_answers(struct connection *c) {
    size_t at = 0;
    while (at < c->answered) {
        ssize_t done = send(c->fd, c->answers + at, c->answered - at, MSG_NOSIGNAL);
        if (done < 0) break; /* The next read says that the connection is gone. */
        at += (size_t)done;
    }
    c->answered = 0;
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "bound PORT FOLDER [sync]\n"), 2;
    folder = words[2];
    int sync = count > 3, one = 1, poller = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&place, sizeof place) || listen(listener, 1024)) fail("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[MAX_EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poller, events, MAX_EVENTS, -1);
        if (ready < 0 && errno != EINTR) fail("epoll_wait");
        int wrote = 0;
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                c = calloc(1, sizeof *c);
                if (!c) fail("calloc");
                c->fd = accept(listener, NULL, NULL);
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                event.data.ptr = c;
                epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
                events[i].data.ptr = NULL;
            } else if (!serve(c)) {
                close(c->fd);
                free(c->answers);
                free(c);
                events[i].data.ptr = NULL;
            } else {
                wrote |= c->answered > 0;
            }
        }
        if (sync && wrote && fdatasync(segment_fd)) fail("fdatasync");
        for (int i = 0; i < ready; i++)
            if (events[i].data.ptr) send_answers(events[i].data.ptr);
    }
}
