#include "cli/get/get.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/get/catalogue.h"
#include "cli/get/settings.h"
#include "cli/hub.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/inspect.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/terminal/bar.h"
#include "hub/download.h"
#include "hub/libcurl.h"
#include "hub/listing.h"
#include "hub/repository.h"
#include "hub/selection.h"
#include "model/gguf/config.h"
#include "moeflux.h"

/* A run of the verb. */
struct get {
    const struct options *o;
    struct settings settings;
    struct libcurl lib;
    struct bar bar;
    struct download_options download;
    struct listing listing;
    struct repository repository;
    const struct listing_file **files; /* that are wanted */
    const struct listing_file **blobs; /* one of these files for each that is stored (listing_blobs) */
    uint32_t n_files, n_blobs;
    uint64_t bytes;         /* the sum of the blobs' sizes */
    uint64_t present_bytes; /* that the cache had at first */
};

static bool is_stopped(void *ctx)
{
    (void)ctx;
    return signals_interrupted();
}

static void tell(void *ctx, const char *text)
{
    struct get *g = ctx;
    bar_hide(&g->bar);
    exit_tell(g->o->log_level, EXIT_WARN, text);
}

static bool is_told(const struct get *g)
{
    return g->o->log_level >= EXIT_INFO;
}

/* --- what there is --- */

static int prepare(struct get *g, const struct term *t, struct moeflux_err *e)
{
    const struct options *o = g->o;
    char folder[HUB_FOLDER];
    int rc = libcurl_open(&g->lib, NULL, e);
    if (rc == 0)
        rc = hub_folder(o->repository, folder, e);
    if (rc == 0)
        rc = repository_open(&g->repository, g->settings.cache, folder, e);
    bar_init(&g->bar, t);
    g->download = (struct download_options){
        .host = {.lib = &g->lib,
                 .endpoint = g->settings.endpoint,
                 .token = g->settings.token,
                 .ca_file = g->settings.ca_file,
                 .agent = "moeflux/" MOEFLUX_VERSION,
                 .stop = {is_stopped, NULL}},
        .name = o->repository,
        .repository = &g->repository,
        .parallel = (uint32_t)o->connections,
        .tries = (uint32_t)o->tries,
        .progress = bar_progress(&g->bar),
        .tell = tell,
        .ctx = g,
    };
    return rc;
}

/* Lists the files that are wanted. */
static int collect(struct get *g, struct moeflux_err *e)
{
    struct listing *l = &g->listing;
    g->files = mem_new(l->n, sizeof *g->files, e);
    if (!g->files)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!l->files[i].wanted)
            continue;
        g->files[g->n_files++] = &l->files[i];
    }
    if (g->n_files == 0)
        return err_set(e, ERR_USAGE, "%s: none of its %u files matches --include and --exclude",
                       g->o->repository, l->n);
    g->blobs = listing_blobs(g->files, g->n_files, &g->n_blobs, e);
    for (uint32_t i = 0; g->blobs && i < g->n_blobs; i++) {
        g->bytes += g->blobs[i]->bytes;
        g->present_bytes += repository_count(&g->repository, g->blobs[i]);
    }
    return g->blobs ? 0 : ERR_MEMORY;
}

static int choose(struct get *g, struct moeflux_err *e)
{
    const struct options *o = g->o;
    const struct selection s = {o->include.values, o->exclude.values, o->include.n, o->exclude.n};
    switch (selection_make(&s, &g->listing)) {
    case SELECTION_MANY:
        return catalogue_ask(&g->listing, o->repository, e);
    case SELECTION_NONE:
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: no weights that moeflux reads, neither safetensors nor GGUF (--include GLOB fetches "
            "files as they are)",
            o->repository);
    default:
        return collect(g, e);
    }
}

static const char *s_of(uint32_t n)
{
    return n == 1 ? "" : "s";
}

static void say_amount(const struct get *g)
{
    char all[32], present[32], other[32];
    uint64_t left_out = 0;
    for (uint32_t i = 0; i < g->listing.n; i++)
        left_out += g->listing.files[i].wanted ? 0 : g->listing.files[i].bytes;
    number_show_bytes(all, sizeof all, (double)g->bytes);
    number_show_bytes(present, sizeof present, (double)g->present_bytes);
    number_show_bytes(other, sizeof other, (double)left_out);
    say("%s, commit %.8s: %u file%s, %s, of which %s are in the cache\n", g->o->repository, g->listing.commit,
        g->n_files, s_of(g->n_files), all, present);
    if (g->n_files < g->listing.n)
        say("left out: %u file%s, %s (--include GLOB fetches what it names)\n", g->listing.n - g->n_files,
            s_of(g->listing.n - g->n_files), other);
}

/* --- what fits --- */

/* Prints what `moeflux inspect` says about the configuration. */
static int inspect(const struct get *g, const char *config, struct moeflux_err *e)
{
    struct options o = *g->o;
    struct output err;
    struct moeflux_err closing;
    o.model = config;
    o.no_measure = true;
    output_init(&err, STDERR_FILENO);
    output_text(&err, "\n");
    int rc = inspect_run(&o, &err, e);
    output_text(&err, "\n");
    output_flush(&err, &closing);
    str_free(&err.held);
    return rc;
}

/* Checks files without a config.json by what the server says about them. */
static int check_files(const struct get *g, struct moeflux_err *e)
{
    const char *architecture = g->listing.architecture;
    bool has_gguf = false, has_safetensors = false;
    for (uint32_t i = 0; i < g->n_files; i++) {
        has_gguf |= str_ends_with(g->files[i]->name, ".gguf");
        has_safetensors |= str_ends_with(g->files[i]->name, ".safetensors");
    }
    if (has_safetensors && !g->o->include.n)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: safetensors without a config.json (--include GLOB fetches files as they are)",
                       g->o->repository);
    if (has_gguf && architecture[0] && !gguf_config_knows(architecture))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the architecture of its GGUF files is %s, which moeflux does not run; llama.cpp "
                       "may run it",
                       g->o->repository, architecture);
    if (has_gguf && !architecture[0])
        exit_tell(g->o->log_level, EXIT_WARN,
                  "the server does not name the architecture of the GGUF files: whether moeflux runs them is "
                  "checked when they are opened");
    return 0;
}

/* Fetches config.json and shows what the model needs. */
static int check_config(struct get *g, const struct listing_file *config, struct moeflux_err *e)
{
    struct moeflux_needs needs;
    struct moeflux_options engine = {0};
    uint64_t ignored;
    struct download_options first = g->download;
    first.files = &config;
    first.n_files = 1;
    int rc = download_run(&first, &ignored, e);
    char *path = rc ? NULL : file_join(g->repository.snapshot, "config.json", e);
    if (rc == 0 && !path)
        rc = ERR_MEMORY;
    if (rc)
        return rc;
    struct options o = *g->o;
    o.model = path;
    options_engine(&o, &engine);
    rc = moeflux_get_needs_with(&engine, &needs, e);
    if (rc == 0 && is_told(g))
        rc = inspect(g, path, e);
    free(path);
    return rc;
}

/* A model that this program does not run is refused, unless the user has named the files. */
static int check_model(struct get *g, struct moeflux_err *e)
{
    const struct listing_file *config = listing_find(&g->listing, "config.json");
    int rc = config && config->wanted ? check_config(g, config, e) : check_files(g, e);
    bool is_named = g->o->include.n && rc && rc != ERR_IO && rc != ERR_MEMORY && rc != ERR_INTERRUPTED;
    if (is_named)
        exit_tell(g->o->log_level, EXIT_WARN, e->text);
    return is_named ? 0 : rc;
}

static int check_room(const struct get *g, struct moeflux_err *e)
{
    char need[32], free_there[32];
    uint64_t room = repository_room(&g->repository), missing = 0;
    for (uint32_t i = 0; i < g->n_blobs; i++)
        missing += g->blobs[i]->bytes - repository_count(&g->repository, g->blobs[i]);
    if (missing <= room)
        return 0;
    number_show_bytes(need, sizeof need, (double)missing);
    number_show_bytes(free_there, sizeof free_there, (double)room);
    return err_set(e, ERR_NO_FIT,
                   "%s: %s are missing, and the disk of %s has room for %s (HF_HUB_CACHE names another)",
                   g->o->repository, need, g->settings.cache, free_there);
}

/* --- the verb --- */

static int fetch(struct get *g, struct moeflux_err *e)
{
    char here[32], all[32], speed[32], text[160];
    uint64_t start = clock_ns(), done;
    g->download.files = g->files;
    g->download.n_files = g->n_files;
    int rc = download_run(&g->download, &done, e);
    double seconds = (double)(clock_ns() - start) / 1e9;
    number_show_bytes(here, sizeof here, (double)done);
    number_show_bytes(all, sizeof all, (double)g->bytes);
    bar_end(&g->bar);
    if (rc == ERR_INTERRUPTED) {
        snprintf(text, sizeof text, "interrupted; %s of %s are in the cache, and the same command goes on",
                 here, all);
        exit_tell(g->o->log_level, EXIT_WARN, text);
    }
    if (rc == ERR_IO) {
        struct moeflux_err first = *e;
        return err_set(e, rc, "%s (%s of %s are in the cache; the same command goes on)", first.text, here,
                       all);
    }
    uint64_t came = done > g->present_bytes ? done - g->present_bytes : 0;
    number_show_bytes(speed, sizeof speed, (double)came / (seconds > 0.001 ? seconds : 0.001));
    if (rc == 0 && is_told(g) && came)
        say("%s: %u file%s, %s; %.1f s, %s/s\n", g->o->repository, g->n_files, s_of(g->n_files), all, seconds,
            speed);
    return rc;
}

/* Finds out what is to be fetched, and whether it fits. */
static int plan(struct get *g, const struct term *t, struct moeflux_err *e)
{
    int rc = prepare(g, t, e);
    if (rc == 0)
        rc = catalogue_read(&g->download, g->o->revision ? g->o->revision : "main", &g->listing, e);
    if (rc == 0)
        rc = repository_set_commit(&g->repository, g->listing.commit, e);
    if (rc == 0)
        rc = choose(g, e);
    if (rc == 0)
        rc = repository_make(&g->repository, e);
    if (rc == 0)
        rc = check_model(g, e);
    if (rc == 0 && is_told(g))
        say_amount(g);
    return rc ? rc : check_room(g, e);
}

/* Without the network only what is there can be named. */
static int find_offline(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct moeflux_err why;
    char *path = NULL;
    const char *flag = o->revision    ? "--revision"
                       : o->include.n ? "--include"
                       : o->exclude.n ? "--exclude"
                       : o->dry_run   ? "--dry-run"
                                      : NULL;
    if (flag)
        return err_set(e, ERR_USAGE, "%s: HF_HUB_OFFLINE is set, and this needs the network", flag);
    if (hub_find(o->repository, false, &path, &why))
        return err_set(e, ERR_IO, "HF_HUB_OFFLINE is set, so nothing is fetched: %s", why.text);
    output_addf(out, "%s\n", path);
    free(path);
    return output_flush(out, e);
}

int get_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct get g = {.o = o};
    int rc = signals_catch_interrupt(e);
    signals_catch_termination();
    if (rc == 0)
        rc = settings_read(&g.settings, e);
    if (rc == 0 && g.settings.offline) {
        settings_free(&g.settings);
        return find_offline(o, out, e);
    }
    if (rc == 0)
        rc = plan(&g, t, e);
    if (rc == 0 && !o->dry_run) {
        rc = fetch(&g, e);
        if (rc == 0)
            rc = repository_set_ref(&g.repository, o->revision ? o->revision : "main", e);
        if (rc == 0)
            output_addf(out, "%s\n", g.repository.snapshot);
    }
    free(g.files);
    free(g.blobs);
    listing_free(&g.listing);
    repository_free(&g.repository);
    settings_free(&g.settings);
    return rc ? rc : output_flush(out, e);
}
