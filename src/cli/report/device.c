#include "cli/report/device.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/table.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

enum { MAX_DEVICES = 32 };

static const struct table_column device_columns[] = {
    {"device", "device", -1},         {"name", "name", -1},         {"kind", "kind", -1},
    {"driver", "driver", -1},         {NULL, "memory", -1},         {"memory_bytes", NULL, 0},
    {"subgroup_size", "subgroup", 0}, {"matrices", "matrices", -1}, {"instruction_set", "instructions", -1},
    {"threads", "threads", 0},        {NULL, "reads", -1},          {"memory_bytes_s", NULL, 0},
    {"memory_node", NULL, 0},         {"default", NULL, -1},        {"usable", "usable", -1},
};
enum { N_DEVICE_COLUMNS = sizeof device_columns / sizeof *device_columns };

struct device_texts {
    char memory[32], reads[40], usable[160];
};

/* Fills cells of which only the CPU's row has threads, an instruction set and a speed of memory. */
static void fill_cpu_cells(struct table_cell *row, const struct moeflux_device *d, double bytes_s,
                           struct device_texts *texts)
{
    bool is_cpu = d->n_threads > 0, is_known = is_cpu && bytes_s > 0;
    char speed[32];
    number_show_bytes(speed, sizeof speed, bytes_s);
    snprintf(texts->reads, sizeof texts->reads, is_known ? "%s/s" : "-", speed);
    row[6].number = is_cpu ? (double)NAN : d->subgroup_size;
    row[7].text = d->matrices;
    row[8].text = d->isa;
    row[9].number = is_cpu ? d->n_threads : (double)NAN;
    row[10].text = texts->reads;
    row[11].number = is_known ? bytes_s : (double)NAN;
}

static void fill_row(struct table_cell *row, const struct moeflux_device *d, double bytes_s,
                     struct device_texts *texts)
{
    number_show_bytes(texts->memory, sizeof texts->memory, (double)d->memory_bytes);
    snprintf(texts->usable, sizeof texts->usable, "%s%s",
             d->usable ? "yes" : "no: ", d->usable ? "" : d->why_not);
    row[0].text = d->option;
    row[1].text = d->name;
    row[2].text = d->kind;
    row[3].text = d->driver;
    row[4].text = texts->memory;
    row[5].number = (double)d->memory_bytes;
    fill_cpu_cells(row, d, bytes_s, texts);
    row[12].number = d->memory_node >= 0 ? d->memory_node : (double)NAN;
    row[13].text = d->is_default ? "yes" : "no";
    row[14].text = texts->usable;
}

/* Whether an earlier device is attached to the same node. */
static bool is_printed(const struct moeflux_device *all, uint32_t at)
{
    bool is = false;
    for (uint32_t i = 0; i < at; i++)
        is = is || all[i].memory_node == all[at].memory_node;
    return is;
}

static void print_node(const struct moeflux_device *all, uint32_t first, uint32_t n, struct output *out)
{
    char names[256] = "";
    uint32_t n_there = 0;
    for (uint32_t i = first; i < n; i++) {
        size_t at = strlen(names);
        if (all[i].memory_node != all[first].memory_node)
            continue;
        snprintf(names + at, sizeof names - at, "%s%s", n_there++ ? ", " : "", all[i].option);
    }
    output_addf(out, "host memory node %d: device%s %s\n", (int)all[first].memory_node,
                n_there > 1 ? "s" : "", names);
}

void device_report_nodes(const struct moeflux_device *all, uint32_t n, struct output *out)
{
    uint32_t n_known = 0;
    for (uint32_t i = 0; i < n; i++)
        n_known += all[i].memory_node >= 0;
    for (uint32_t i = 0; n_known > 1 && i < n; i++)
        if (all[i].memory_node >= 0 && !is_printed(all, i))
            print_node(all, i, n, out);
}

int device_report_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct moeflux_device devices[MAX_DEVICES];
    struct device_texts texts[MAX_DEVICES];
    struct table_cell cells[MAX_DEVICES * N_DEVICE_COLUMNS];
    int n = moeflux_list_devices(devices, MAX_DEVICES, e);
    double bytes_s = 0;
    int rc = n < 0 ? n : lab_measure_memory((uint32_t)o->threads, &bytes_s, e);
    if (rc < 0)
        return rc;
    if (n > MAX_DEVICES)
        n = MAX_DEVICES;
    for (size_t i = 0; i < (size_t)n; i++) {
        if (devices[i].n_threads > 0 && o->threads > 0)
            devices[i].n_threads = (uint32_t)o->threads;
        fill_row(&cells[i * N_DEVICE_COLUMNS], &devices[i], bytes_s, &texts[i]);
    }
    struct table table = {device_columns, N_DEVICE_COLUMNS, (size_t)n, cells};
    if (o->json) {
        json_t *object = json_object();
        json_object_set_new(object, "devices", table_json(&table));
        return output_json(out, object, e);
    }
    table_print(&table, o->csv ? TABLE_CSV : TABLE_PLAIN, out);
    if (!o->csv)
        device_report_nodes(devices, (uint32_t)n, out);
    return output_flush(out, e);
}
