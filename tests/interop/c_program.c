// A trainer in C: two parameters in one unit, ranks that are threads. c_program <ranks>
//
// Prints PASS or FAIL for each check; rank r's gradient of element k of parameter p is
// (r + 1) * (10 p + k), given twice, so the sums are known.

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sherd/shard/c_api.h"

#define kRanks 3
enum { kFirst = 12, kSecond = 5 };

typedef struct rank_state {
  int rank, size;
  sherd_store* store;
  const char* failure;  // the first, NULL: none
  char text[400];
  int logged;
} rank_state;

static void Check(rank_state* state, int holds, const char* what) {
  if (holds || state->failure != NULL) return;
  state->failure = what;
  snprintf(state->text, sizeof(state->text), "%s", sherd_error_text());
}

static void Ok(rank_state* state, sherd_status status, const char* what) {
  Check(state, status == SHERD_OK, what);
}

static void Log(void* context, int32_t level, int32_t rank, const char* text) {
  (void)text;
  if (level == SHERD_LOG_WARNING && rank == ((rank_state*)context)->rank) {
    ++((rank_state*)context)->logged;
  }
}

static sherd_unit* MakeUnit(rank_state* state, sherd_world* world) {
  const int64_t matrix[2] = {3, 4};
  const int64_t vector[1] = {kSecond};
  const sherd_parameter parameters[2] = {
      {.name = "matrix", .dtype = SHERD_F64, .rank = 2, .shape = matrix},
      {.name = "vector", .dtype = SHERD_F64, .rank = 1, .shape = vector}};
  sherd_unit* unit = NULL;
  Ok(state, sherd_unit_create(world, "layer", parameters, 2, NULL, &unit), "create a unit");
  return unit;
}

// Element k of parameter p is 100 p + k.
static void SetValues(rank_state* state, sherd_unit* unit) {
  for (int32_t p = 0; p < 2; ++p) {
    sherd_buffer piece;
    Ok(state, sherd_unit_local(unit, p, &piece), "local");
    for (int64_t k = 0; k < piece.elems; ++k) {
      Check(state, ((double*)piece.data)[k] == 0.0, "values are zero at first");
      ((double*)piece.data)[k] = (double)(100 * p + piece.offset + k);
    }
  }
}

static void Forward(rank_state* state, sherd_unit* unit) {
  Ok(state, sherd_unit_unshard(unit, 1), "unshard");
  for (int32_t p = 0; p < 2; ++p) {
    sherd_buffer full;
    Ok(state, sherd_unit_full(unit, p, &full), "full");
    Check(state, full.elems == (p == 0 ? kFirst : kSecond), "full elements");
    Check(state, full.dtype == SHERD_F64 && full.offset == 0, "full dtype and offset");
    for (int64_t k = 0; k < full.elems; ++k) {
      Check(state, ((double*)full.data)[k] == (double)(100 * p + k), "gathered values");
    }
  }
  Ok(state, sherd_unit_reshard(unit), "reshard");
}

// `held`: sums of an earlier backward are in the buffer already, as they are with one rank.
static void Backward(rank_state* state, sherd_unit* unit, int held) {
  Ok(state, sherd_unit_begin_backward(unit, 1), "begin backward");
  for (int contribution = 0; contribution < 2; ++contribution) {
    for (int32_t p = 0; p < 2; ++p) {
      sherd_buffer gradient;
      int32_t add = -1;
      Ok(state, sherd_unit_gradient(unit, p, &gradient, &add), "gradient");
      Check(state, add == (held || contribution > 0), "later contributions add");
      for (int64_t k = 0; k < gradient.elems; ++k) {
        double* at = (double*)gradient.data + k;
        *at = (add ? *at : 0.0) + (double)((state->rank + 1) * (10 * p + k));
      }
    }
  }
  Ok(state, sherd_unit_end_backward(unit), "end backward");
}

static void CheckGradients(rank_state* state, sherd_unit* unit, int backwards) {
  const int ranks = state->size * (state->size + 1) / 2;  // 1 + 2 + ... + size
  for (int32_t p = 0; p < 2; ++p) {
    sherd_buffer piece, gradient;
    Ok(state, sherd_unit_local(unit, p, &piece), "local");
    Ok(state, sherd_unit_local_gradient(unit, p, &gradient), "local gradient");
    Check(state, gradient.elems == piece.elems && gradient.offset == piece.offset,
          "a gradient for each element of the piece");
    for (int64_t k = 0; k < gradient.elems; ++k) {
      const double want = (double)(backwards * 2 * ranks * (10 * p + piece.offset + k));
      Check(state, ((double*)gradient.data)[k] == want, "summed gradients");
    }
  }
}

static void CheckStats(rank_state* state, sherd_world* world) {
  sherd_step_stats stats = {.size = sizeof(stats)};
  Ok(state, sherd_world_step_stats(world, &stats), "step stats");
  if (state->size > 1) {
    // 17 elements in equal chunks: 18 of 8 bytes travel, for two forwards and two backwards.
    Check(state, stats.gathers == 4 && stats.gathered_bytes == 4 * 144, "four gathers");
    Check(state, stats.reductions == 1 && stats.reduced_bytes == 144, "one reduction");
  }
  Check(state, stats.complete == 1 && stats.wall_ns > 0 && stats.peak_bytes >= 144, "stats");
  stats.size = 8;
  Ok(state, sherd_world_step_stats(world, &stats), "an older, shorter struct");
}

static void CheckErrors(rank_state* state, sherd_world* world, sherd_unit* unit) {
  sherd_buffer buffer;
  int32_t add;
  Check(state, sherd_unit_full(unit, 0, &buffer) == SHERD_FAILED_PRECONDITION, "full outside");
  Check(state, strstr(sherd_error_text(), "'matrix' of unit 'layer' is sharded") != NULL,
        "the text names the parameter");
  Check(state, sherd_unit_gradient(unit, 1, &buffer, &add) == SHERD_FAILED_PRECONDITION,
        "gradient outside");
  Check(state, sherd_unit_reshard(unit) == SHERD_FAILED_PRECONDITION, "reshard outside");
  Check(state, sherd_unit_end_backward(unit) == SHERD_FAILED_PRECONDITION, "end outside");
  Check(state, strstr(sherd_error_text(), "unit 'layer' has no open scope") != NULL, "its text");
  Check(state, sherd_unit_local(unit, 2, &buffer) == SHERD_INVALID_ARGUMENT, "no parameter 2");
  Check(state, sherd_unit_local(NULL, 0, &buffer) == SHERD_INVALID_ARGUMENT, "a null unit");
  Check(state, strcmp(sherd_error_text(), "the unit is NULL") == 0, "its text");
  Check(state, sherd_unit_create(world, NULL, NULL, 0, NULL, &unit) == SHERD_INVALID_ARGUMENT,
        "a null name");
  sherd_unit_options options = {.size = sizeof(options), .stage = 7};
  Check(state, sherd_unit_create(world, "x", NULL, 0, &options, &unit) == SHERD_INVALID_ARGUMENT,
        "stage 7");
  options.size = 1000;
  Check(state, sherd_unit_create(world, "x", NULL, 0, &options, &unit) == SHERD_INVALID_ARGUMENT,
        "a struct of the future");
}

// Gives up inside scopes; what follows is as if they had not been.
static void Abandon(rank_state* state, sherd_unit* unit) {
  sherd_buffer gradient;
  int32_t add;
  Ok(state, sherd_unit_unshard(unit, 1), "unshard");
  sherd_unit_abandon_forward(unit);
  Ok(state, sherd_unit_begin_backward(unit, 1), "begin backward");
  Ok(state, sherd_unit_gradient(unit, 0, &gradient, &add), "gradient");
  ((double*)gradient.data)[0] = 1e9;
  sherd_unit_abandon_backward(unit);
  sherd_unit_abandon_backward(unit);
  Ok(state, sherd_unit_clear_gradients(unit), "clear");
  sherd_unit_abandon_forward(NULL);
}

static void* RunRank(void* argument) {
  rank_state* state = (rank_state*)argument;
  // More threads than there are CPUs draw a warning in the log.
  const sherd_world_options options = {.size = sizeof(options),
                                       .threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN) + 1,
                                       .collective_seconds = 60,
                                       .log = Log,
                                       .log_context = state};
  sherd_world* world = NULL;
  Ok(state, sherd_world_join_store(state->store, state->rank, state->size, &options, &world),
     "join");
  if (world == NULL) return NULL;
  Check(state, state->logged == 1, "one warning came to the log, with the rank");
  Check(state, sherd_world_rank(world) == state->rank, "rank");
  Check(state, sherd_world_size(world) == state->size, "size");
  double sum = state->rank + 1;
  Ok(state, sherd_world_all_reduce(world, &sum, 1, SHERD_F64), "all-reduce");
  Check(state, sum == (double)(state->size * (state->size + 1) / 2), "its sum");
  sherd_step_stats none = {.size = sizeof(none)};
  Check(state, sherd_world_step_stats(world, &none) == SHERD_FAILED_PRECONDITION, "not recorded");
  Ok(state, sherd_world_record_steps(world, 0), "record");
  sherd_unit* unit = MakeUnit(state, world);
  if (unit != NULL) {
    SetValues(state, unit);
    Forward(state, unit);
    CheckErrors(state, world, unit);
    Abandon(state, unit);
    Backward(state, unit, 0);
    CheckGradients(state, unit, 1);
    CheckStats(state, world);
    Ok(state, sherd_unit_set_sync(unit, SHERD_SYNC_NONE), "set sync");
    Backward(state, unit, state->size == 1);
    Ok(state, sherd_unit_finish_gradients(unit), "finish");
    CheckGradients(state, unit, 2);
    Ok(state, sherd_unit_clear_gradients(unit), "clear");
    sherd_buffer gradient;
    Ok(state, sherd_unit_local_gradient(unit, 0, &gradient), "local gradient");
    Check(state, gradient.data == NULL && gradient.elems == 0, "cleared");
  }
  Ok(state, sherd_world_finish(world), "finish the world");
  sherd_world_free(world);
  sherd_unit_free(unit);
  return NULL;
}

int main(int count, char** arguments) {
  const int size = count > 1 ? atoi(arguments[1]) : 1;
  rank_state states[kRanks] = {{0}};
  pthread_t threads[kRanks];
  sherd_store* store = NULL;
  if (size < 1 || size > kRanks || sherd_store_create(&store) != SHERD_OK) return 2;
  for (int rank = 0; rank < size; ++rank) {
    states[rank].rank = rank;
    states[rank].size = size;
    states[rank].store = store;
    pthread_create(&threads[rank], NULL, RunRank, &states[rank]);
  }
  int failures = 0;
  for (int rank = 0; rank < size; ++rank) {
    pthread_join(threads[rank], NULL);
    if (states[rank].failure == NULL) continue;
    ++failures;
    printf("FAIL c program, %d ranks: rank %d: %s (%s)\n", size, rank, states[rank].failure,
           states[rank].text);
  }
  sherd_store_free(store);
  sherd_store_free(NULL);
  if (failures == 0) printf("PASS c program, %d ranks\n", size);
  if (sherd_c_api_version() != SHERD_C_API_VERSION) printf("FAIL versions: differ\n");
  return failures;
}
