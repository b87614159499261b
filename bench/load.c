/*
 * load: one fast client with timing; the same client for every broker.
 *
 *   load produce -b HOST:PORT -t TOPIC -n COUNT -s SIZE [-p PARTITIONS] [-k KEYS]
 *   load consume -b HOST:PORT -t TOPIC -n COUNT [-p PARTITIONS]
 *   load ack     -b HOST:PORT -t TOPIC -n COUNT | -d SECONDS  -s SIZE [-r RATE] [-o SAMPLES]
 *   load e2e     -b HOST:PORT -t TOPIC -n COUNT | -d SECONDS  -s SIZE [-r RATE] [-o SAMPLES]
 *   load trickle -b HOST:PORT -t TOPIC -d SECONDS -s SIZE -r RATE [-p PARTITIONS]
 *   load connect -b HOST:PORT -n COUNT
 *
 * -X name=value sets a property of librdkafka, -P one of the producer only, -C one of the consumer
 * only. Each run prints one line of JSON. The file SAMPLES gets pairs of doubles: when a record was
 * sent (CLOCK_MONOTONIC, seconds) and how long it took (seconds). SIGTERM ends "ack", "e2e"
 * and "trickle" early; they still report.
 *
 * "produce" measures from the first record to the last acknowledgement, after it has connected and
 * one record was acknowledged. "consume" measures from the arrival of the first records. "ack" and
 * "e2e" have one record in flight at any time: a latency, not a rate. "trickle" sends
 * RATE records per second, to one partition after the other. "connect" opens connections,
 * sends one request on each, and keeps them open until its standard input ends.
 */
#include "rdkafka.h"

#include <limits.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SETTINGS_MAX = 64, MESSAGES_PER_CALL = 1000, KEY_SIZE_MAX = 24 };
static const double STALL_SECONDS = 20;

struct setting {
    char role; /* 'X' both, 'P' producer, 'C' consumer */
    char *name;
    char *value;
};

static struct {
    const char *brokers, *topic, *samples_path;
    long count;
    int size, partitions, rate;
    long key_count;
    double seconds;
    struct setting settings[SETTINGS_MAX];
    int setting_count;
} options = {.partitions = 1, .size = 100};

static volatile sig_atomic_t stopping; /* set by SIGTERM: a latency run stops and reports */

static void on_sigterm(int number) {
    (void)number;
    stopping = 1;
}

/* Written by the delivery callback, which runs inside rd_kafka_poll on the main thread. */
static long delivered, failed;

static void die(const char *what, const char *why) {
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (!message->err)
        delivered++;
    else if (failed++ == 0)
        fprintf(stderr, "load: not delivered: %s\n", rd_kafka_err2str(message->err));
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        die(name, error);
}

static rd_kafka_t *client(int type) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", options.brokers);
    if (type == RD_KAFKA_CONSUMER) {
        set(conf, "group.id", "load"); /* librdkafka requires one; nothing is committed */
        set(conf, "enable.auto.commit", "false");
    } else {
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    }
    char role = type == RD_KAFKA_PRODUCER ? 'P' : 'C';
    for (int i = 0; i < options.setting_count; i++) {
        struct setting *s = &options.settings[i];
        if (s->role == 'X' || s->role == role)
            set(conf, s->name, s->value);
    }
    rd_kafka_t *rk = rd_kafka_new(type, conf, error, sizeof error);
    if (!rk)
        die("no client", error);
    return rk;
}

/* Connect and request the topic's metadata, so that neither is measured later. */
static rd_kafka_topic_t *known_topic(rd_kafka_t *producer) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options.topic, NULL);
    const struct rd_kafka_metadata *metadata;
    rd_kafka_resp_err_t err = rd_kafka_metadata(producer, 0, topic, &metadata, 10000);
    if (err)
        die("no metadata", rd_kafka_err2str(err));
    rd_kafka_metadata_destroy(metadata);
    return topic;
}

static void assign(rd_kafka_t *consumer, int64_t offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(options.partitions);
    for (int i = 0; i < options.partitions; i++)
        rd_kafka_topic_partition_list_add(list, options.topic, i)->offset = offset;
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_assign(consumer, list);
}

static char *payload(void) {
    char *bytes = malloc(options.size + sizeof(double));
    for (int i = 0; i < options.size; i++)
        bytes[i] = 'a' + rand() % 26;
    return bytes;
}

/*
 * An idempotent producer requests its producer ID before it sends anything, and librdkafka may wait
 * half a second before that. A first record keeps this out of the measurement.
 */
static void produce_one_ahead(rd_kafka_t *producer, rd_kafka_topic_t *topic) {
    rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, "ahead", 5, "ahead", 5, NULL);
    while (rd_kafka_outq_len(producer) > 0)
        rd_kafka_poll(producer, 50);
    if (failed)
        exit(1);
    delivered = 0;
}

/* Queue a number of messages; waits while the queue is full. */
static void send_all(rd_kafka_t *producer, rd_kafka_topic_t *topic, rd_kafka_message_t *messages,
                     int count) {
    rd_kafka_poll(producer, 0);
    while (rd_kafka_produce_batch(topic, 0, RD_KAFKA_MSG_F_PARTITION, messages, count) < count) {
        int left = 0;
        for (int i = 0; i < count; i++)
            if (messages[i].err)
                messages[left++] = messages[i];
        count = left;
        rd_kafka_poll(producer, 5);
    }
}

static int produce(void) {
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER);
    rd_kafka_topic_t *topic = known_topic(producer);
    char *value = payload(), (*keys)[KEY_SIZE_MAX] = calloc(MESSAGES_PER_CALL, KEY_SIZE_MAX);
    rd_kafka_message_t *messages = calloc(MESSAGES_PER_CALL, sizeof *messages);
    if (options.count > 1)
        produce_one_ahead(producer, topic);
    double start = now(), start_cpu = cpu_seconds(), last_progress = start;
    for (long i = 0; i < options.count;) {
        int n = 0;
        for (; n < MESSAGES_PER_CALL && i < options.count; n++, i++) {
            rd_kafka_message_t *message = &messages[n];
            message->partition = i % options.partitions;
            message->payload = value; /* the same bytes for all messages; the client never copies them */
            message->len = options.size;
            /* Keys repeat: each occurs COUNT / KEYS times, so that compaction has work to do. */
            if (options.key_count) {
                message->key = keys[n];
                long number = i % options.key_count;
                message->key_len = snprintf(keys[n], KEY_SIZE_MAX, "key-%010ld", number);
            }
        }
        send_all(producer, topic, messages, n);
    }
    for (long left, before = 0; (left = rd_kafka_outq_len(producer)) > 0; before = left) {
        rd_kafka_poll(producer, 50);
        if (left != before)
            last_progress = now();
        else if (now() - last_progress > STALL_SECONDS)
            die("produce", "no acknowledgement for a long time");
    }
    double seconds = now() - start;
    delivered = options.count - failed; /* the queue is empty, and every failure was reported */
    printf("{\"records\": %ld, \"failed\": %ld, \"seconds\": %.4f, \"records_per_s\": %.0f, "
           "\"mb_per_s\": %.2f, \"client_cpu_s\": %.3f}\n",
           delivered, failed, seconds, delivered / seconds,
           delivered * (double)options.size / seconds / 1e6, cpu_seconds() - start_cpu);
    return failed != 0;
}

static int consume(void) {
    rd_kafka_t *consumer = client(RD_KAFKA_CONSUMER);
    assign(consumer, RD_KAFKA_OFFSET_BEGINNING);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    rd_kafka_message_t *messages[MESSAGES_PER_CALL];
    long records = 0;
    double bytes = 0, start = 0, start_cpu = cpu_seconds(), last_progress = now();
    while (records < options.count) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 1000, messages, MESSAGES_PER_CALL);
        if (n <= 0) {
            if (now() - last_progress > STALL_SECONDS)
                die("consume", "no records for a long time");
            continue;
        }
        last_progress = now();
        if (!start)
            start = last_progress;
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err) {
                fprintf(stderr, "load: %s\n", rd_kafka_err2str(messages[i]->err));
            } else {
                records++;
                bytes += messages[i]->len;
            }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    double seconds = now() - start;
    printf("{\"records\": %ld, \"seconds\": %.4f, \"records_per_s\": %.0f, \"mb_per_s\": %.2f, "
           "\"client_cpu_s\": %.3f}\n",
           records, seconds, records / seconds, bytes / seconds / 1e6, cpu_seconds() - start_cpu);
    return 0;
}

/*
 * malloc returns freed memory to the kernel at once and allocates it again, with page faults. On a
 * virtual machine that costs more than the rest of the client. Keep the memory instead.
 */
static void keep_memory(void) {
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One record at a time: until its acknowledgement, or (end_to_end) until a consumer has it. */
static int latency(int end_to_end) {
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER), *consumer = NULL;
    rd_kafka_topic_t *topic = known_topic(producer);
    if (end_to_end) {
        consumer = client(RD_KAFKA_CONSUMER);
        assign(consumer, RD_KAFKA_OFFSET_END);
        /* The first record may precede the consumer's start at the end: send until one arrives. */
        rd_kafka_message_t *message = NULL;
        for (double start = now(); !message || message->err;) {
            if (now() - start > STALL_SECONDS)
                die("e2e", "the consumer saw nothing for a long time");
            rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, "warm", 4, NULL, 0, NULL);
            rd_kafka_poll(producer, 0);
            message = rd_kafka_consumer_poll(consumer, 200);
        }
        while ((message = rd_kafka_consumer_poll(consumer, 500)))
            rd_kafka_message_destroy(message);
        while (rd_kafka_outq_len(producer) > 0)
            rd_kafka_poll(producer, 50);
        failed = 0;
    } else {
        produce_one_ahead(producer, topic);
    }
    long room = options.count ? options.count : 1 << 20, n = 0;
    double *sent_at = malloc(room * sizeof(double)), *took = malloc(room * sizeof(double));
    char *value = payload();
    double start = now();
    while (!stopping && n < room && (options.count || now() - start < options.seconds)) {
        long before = delivered + failed;
        double sent = now();
        rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, value, options.size, NULL, 0, NULL);
        if (end_to_end) {
            rd_kafka_message_t *message = NULL;
            while (!message || message->err) {
                if (now() - sent > STALL_SECONDS)
                    die("e2e", "a record did not come back");
                message = rd_kafka_consumer_poll(consumer, 1000);
            }
            took[n] = now() - sent;
            rd_kafka_message_destroy(message);
        }
        while (delivered + failed == before)
            rd_kafka_poll(producer, 100);
        if (!end_to_end)
            took[n] = now() - sent;
        sent_at[n++] = sent;
        if (options.rate) {
            double pause = 1.0 / options.rate - (now() - sent);
            if (pause > 0)
                usleep(pause * 1e6);
        }
    }
    if (options.samples_path) {
        FILE *file = fopen(options.samples_path, "wb");
        if (!file)
            die("cannot write", options.samples_path);
        for (long i = 0; i < n; i++) {
            fwrite(&sent_at[i], sizeof(double), 1, file);
            fwrite(&took[i], sizeof(double), 1, file);
        }
        fclose(file);
    }
    qsort(took, n, sizeof(double), by_value);
    printf("{\"records\": %ld, \"failed\": %ld, \"p50_us\": %.0f, \"p99_us\": %.0f, "
           "\"max_us\": %.0f}\n",
           n, failed, took[n / 2] * 1e6, took[(long)(n * .99)] * 1e6, took[n - 1] * 1e6);
    return failed != 0;
}

static int trickle(void) {
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER);
    rd_kafka_topic_t *topic = known_topic(producer);
    char *value = payload();
    double start = now();
    long sent = 0;
    while (!stopping && now() - start < options.seconds) {
        for (long due = (now() - start) * options.rate; sent < due; sent++)
            rd_kafka_produce(topic, sent % options.partitions, RD_KAFKA_MSG_F_COPY, value,
                             options.size, NULL, 0, NULL);
        rd_kafka_poll(producer, 5);
    }
    while (rd_kafka_outq_len(producer) > 0)
        rd_kafka_poll(producer, 50);
    printf("{\"records\": %ld, \"failed\": %ld}\n", delivered, failed);
    return failed != 0;
}

/* ApiVersions 0: every broker answers it, to every client. */
static const unsigned char API_VERSIONS[] = {0, 0, 0, 14, 0, 18, 0, 0, 0,
                                             0, 0, 7, 0, 4, 'l', 'o', 'a', 'd'};

static void read_all(int fd, unsigned char *into, size_t size) {
    while (size > 0) {
        ssize_t n = read(fd, into, size);
        if (n <= 0)
            die("connect", "the broker closed a connection");
        into += n;
        size -= n;
    }
}

static int connect_many(void) {
    char host[256];
    const char *colon = strrchr(options.brokers, ':');
    if (!colon || colon - options.brokers >= (long)sizeof host)
        die("-b", "requires HOST:PORT");
    snprintf(host, sizeof host, "%.*s", (int)(colon - options.brokers), options.brokers);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *address;
    if (getaddrinfo(host, colon + 1, &hints, &address))
        die("unknown host", host);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    unsigned char answer[1 << 16];
    for (long i = 0; i < options.count; i++) {
        int fd = socket(address->ai_family, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, address->ai_addr, address->ai_addrlen))
            die("connect", "refused");
        if (write(fd, API_VERSIONS, sizeof API_VERSIONS) != sizeof API_VERSIONS)
            die("connect", "cannot send");
        read_all(fd, answer, 4);
        size_t size = answer[0] << 24 | answer[1] << 16 | answer[2] << 8 | answer[3];
        if (size > sizeof answer)
            die("connect", "the response is too long for ApiVersions");
        read_all(fd, answer, size);
    }
    printf("{\"connections\": %ld}\n", options.count);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}

static void add_setting(char role, char *pair) {
    char *equals = strchr(pair, '=');
    if (!equals || options.setting_count == SETTINGS_MAX)
        die("bad setting", pair);
    *equals = 0;
    options.settings[options.setting_count++] = (struct setting){role, pair, equals + 1};
}

int main(int argc, char **argv) {
    if (argc < 2)
        die("usage", "load produce|consume|ack|e2e|trickle|connect -b HOST:PORT ...");
    const char *mode = argv[1];
    for (int c; (c = getopt(argc - 1, argv + 1, "b:t:n:s:p:k:r:d:o:X:P:C:")) != -1;) {
        switch (c) {
        case 'b': options.brokers = optarg; break;
        case 't': options.topic = optarg; break;
        case 'n': options.count = atol(optarg); break;
        case 's': options.size = atoi(optarg); break;
        case 'p': options.partitions = atoi(optarg); break;
        case 'k': options.key_count = atol(optarg); break;
        case 'r': options.rate = atoi(optarg); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'o': options.samples_path = optarg; break;
        case 'X': case 'P': case 'C': add_setting(c, optarg); break;
        default: return 2;
        }
    }
    if (!options.brokers)
        die("usage", "-b HOST:PORT is required");
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(mode, "ack") || !strcmp(mode, "e2e") || !strcmp(mode, "trickle"))
        signal(SIGTERM, on_sigterm);
    keep_memory();
    int status;
    if (!strcmp(mode, "produce"))
        status = produce();
    else if (!strcmp(mode, "consume"))
        status = consume();
    else if (!strcmp(mode, "ack"))
        status = latency(0);
    else if (!strcmp(mode, "e2e"))
        status = latency(1);
    else if (!strcmp(mode, "trickle"))
        status = trickle();
    else if (!strcmp(mode, "connect"))
        status = connect_many();
    else
        die("unknown mode", mode), status = 2;
    fflush(stdout);
    _exit(status); /* closing the client would wait for its connections; the measurement is done */
}
