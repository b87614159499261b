/*
 * The part of librdkafka's C interface that load.c calls, declared by hand.
 *
 * The library is in the confluent-kafka wheel, which has no header files.
 * librdkafka keeps these names, structures and numbers stable within its major version.
 */
#ifndef BENCH_RDKAFKA_H
#define BENCH_RDKAFKA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
struct rd_kafka_metadata;

enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { RD_KAFKA_CONF_OK = 0 };
enum { RD_KAFKA_MSG_F_COPY = 2, RD_KAFKA_MSG_F_PARTITION = 8 };
enum { RD_KAFKA_OFFSET_BEGINNING = -2, RD_KAFKA_OFFSET_END = -1 };

typedef int rd_kafka_resp_err_t; /* 0 is success */

typedef struct rd_kafka_message_s {
    rd_kafka_resp_err_t err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

typedef struct rd_kafka_topic_partition_s {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    rd_kafka_resp_err_t err;
    void *_private;
} rd_kafka_topic_partition_t;

typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;

typedef void (*rd_kafka_delivery_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *opaque);

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *name, const char *value, char *error,
                      size_t error_size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, rd_kafka_delivery_cb);
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *, char *error, size_t error_size);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *topic, rd_kafka_topic_conf_t *);
rd_kafka_resp_err_t rd_kafka_metadata(rd_kafka_t *, int all_topics, rd_kafka_topic_t *only,
                                      const struct rd_kafka_metadata **, int timeout_ms);
void rd_kafka_metadata_destroy(const struct rd_kafka_metadata *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t partition, int flags, void *payload, size_t size,
                     const void *key, size_t key_size, void *opaque);
int rd_kafka_produce_batch(rd_kafka_topic_t *, int32_t partition, int flags, rd_kafka_message_t *,
                           int count);
int rd_kafka_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_outq_len(rd_kafka_t *);
rd_kafka_resp_err_t rd_kafka_poll_set_consumer(rd_kafka_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int size);
rd_kafka_topic_partition_t *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *,
                                                              const char *topic, int32_t partition);
rd_kafka_resp_err_t rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **,
                                     size_t count);
rd_kafka_message_t *rd_kafka_consumer_poll(rd_kafka_t *, int timeout_ms);
void rd_kafka_message_destroy(rd_kafka_message_t *);
const char *rd_kafka_err2str(rd_kafka_resp_err_t);
const char *rd_kafka_version_str(void);

#endif
