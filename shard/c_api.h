#pragma once

// The unit engine for C, and for languages that call C: Rust, Swift, Python's ctypes.
//
// A world of ranks, units of parameters that are gathered and reduced together, and what a step
// cost. For trainers with tensors, a backward and an optimizer of their own. For each call of a
// layer, on all ranks in one order:
//
//   sherd_unit_unshard, (read sherd_unit_full), sherd_unit_reshard; later
//   sherd_unit_begin_backward, (write sherd_unit_gradient), sherd_unit_end_backward
//
// then sherd_unit_local_gradient has this rank's part of the sum over all ranks and calls, for the
// optimizer to change sherd_unit_local with. Nobody here divides.
//
// Errors: every call that can fail returns a sherd_status, and then sherd_error_text() says what
//   was wrong. No C++ exception leaves a call. Results are written when it is SHERD_OK only. After
//   a failed collective the step has failed on all ranks: what can still be called is free, and,
//   with one rank, sherd_world_recover.
// Ownership: what a function creates is freed by the caller with the function of that name, NULL
//   included; units may be freed before their world or after. Texts and arrays that are passed in
//   are copied before the call returns; data in buffers belongs to the unit.
// Threads: a world and its units are used by one thread at a time. Handles of different worlds are
//   apart, so ranks may be threads of one process.
// C11 or later. Structs begin with their size, so that they can grow: zero one, set `size` to
// sizeof, and what stays 0 has its default.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHERD_C_CALL __attribute__((visibility("default")))
#else
#define SHERD_C_CALL
#endif

// Of this header. It rises when a call or a struct changes its meaning; additions do not raise it.
#define SHERD_C_API_VERSION 1
// Of the library that was linked.
SHERD_C_CALL int32_t sherd_c_api_version(void);

// The numbers of absl::StatusCode.
typedef int32_t sherd_status;
enum {
  SHERD_OK = 0,
  SHERD_UNKNOWN = 2,
  SHERD_INVALID_ARGUMENT = 3,     // the caller's mistake; nothing has changed
  SHERD_DEADLINE_EXCEEDED = 4,    // ranks did not come, the text names them
  SHERD_RESOURCE_EXHAUSTED = 8,   // no memory
  SHERD_FAILED_PRECONDITION = 9,  // a call in the wrong place, or after a failure
  SHERD_ABORTED = 10,             // another rank gave up, its text is here
  SHERD_INTERNAL = 13,            // a bug of this library
  SHERD_UNAVAILABLE = 14          // a rank or a connection is lost
};
// The error of the calling thread's latest call that failed; "" before the first. Valid until the
// thread's next failure.
SHERD_C_CALL const char* sherd_error_text(void);

// Element types.
typedef int32_t sherd_dtype;
enum { SHERD_F32 = 0, SHERD_F64 = 1, SHERD_BF16 = 2, SHERD_F16 = 3, SHERD_I32 = 4, SHERD_I64 = 5 };

// ---- Worlds ----

// A table by which ranks that are threads of one process find each other; safe to share.
typedef struct sherd_store sherd_store;
SHERD_C_CALL sherd_status sherd_store_create(sherd_store** store);
SHERD_C_CALL void sherd_store_free(sherd_store* store);

// Levels of log lines.
enum { SHERD_LOG_INFO = 0, SHERD_LOG_WARNING = 1, SHERD_LOG_ERROR = 2 };

typedef struct sherd_world_options {
  size_t size;
  int32_t threads;            // compute threads; 0: this rank's share of the host's CPUs
  double rendezvous_seconds;  // how long to wait for all ranks; 0: 300
  double collective_seconds;  // how long one collective may take; 0: 600
  const char* address;        // where others reach this rank; NULL: found out
  // Where log lines go, from any thread, also several at once; NULL: nowhere. `rank` is -1 where
  // none is known. `text` is valid during the call.
  void (*log)(void* context, int32_t level, int32_t rank, const char* text);
  void* log_context;
} sherd_world_options;

// All ranks of a job, seen from one of them.
typedef struct sherd_world sherd_world;
// Joins the job this process was started in: torchrun, mpirun, srun, or a single process.
// COLLECTIVE.
SHERD_C_CALL sherd_status sherd_world_join(const sherd_world_options* options, sherd_world** world);
// Joins the ranks that share `store`, which serves one world; NULL with size 1. COLLECTIVE.
SHERD_C_CALL sherd_status sherd_world_join_store(sherd_store* store, int32_t rank, int32_t size,
                                                 const sherd_world_options* options,
                                                 sherd_world** world);
// Waits for every rank, then leaves; what is freed without it fails the others. COLLECTIVE.
SHERD_C_CALL sherd_status sherd_world_finish(sherd_world* world);
SHERD_C_CALL void sherd_world_free(sherd_world* world);
// -1 for NULL.
SHERD_C_CALL int32_t sherd_world_rank(const sherd_world* world);
SHERD_C_CALL int32_t sherd_world_size(const sherd_world* world);
// Replaces the elements of `data` by their sum over the ranks, in rank order. COLLECTIVE.
SHERD_C_CALL sherd_status sherd_world_all_reduce(sherd_world* world, void* data, int64_t elems,
                                                 sherd_dtype dtype);
SHERD_C_CALL sherd_status sherd_world_barrier(sherd_world* world);
// Ends the step of all ranks with this text. Threads: any, at any time.
SHERD_C_CALL void sherd_world_abort(sherd_world* world, const char* why);
// After a failure with one rank: drops all gradients, closes all scopes. Fails with several.
SHERD_C_CALL sherd_status sherd_world_recover(sherd_world* world);

// ---- Units ----

typedef struct sherd_parameter {
  const char* name;  // for messages
  sherd_dtype dtype;
  int32_t rank;  // how many dimensions, up to 6
  const int64_t* shape;
  int32_t frozen;   // 1: gathered and never reduced
  int64_t granule;  // so many elements never lie on two ranks; 0: 1
} sherd_parameter;

// What is cut over the ranks.
enum {
  SHERD_ZERO_3 = 0,        // parameters, gradients and the optimizer's part
  SHERD_ZERO_2 = 1,        // gradients and the optimizer's part
  SHERD_ZERO_1 = 2,        // the optimizer's part
  SHERD_DATA_PARALLEL = 3  // nothing
};

typedef struct sherd_unit_options {
  size_t size;
  int32_t stage;          // one of the four above
  int32_t cast_gathered;  // 1: `gathered` says the element type of what is gathered
  sherd_dtype gathered;
  int32_t cast_reduced;  // 1: `reduced` says the element type of gradients between ranks
  sherd_dtype reduced;
} sherd_unit_options;

// Contiguous elements of one parameter, from element `offset` of the whole on.
typedef struct sherd_buffer {
  void* data;  // NULL: there are none
  int64_t elems;
  int64_t offset;
  sherd_dtype dtype;
} sherd_buffer;

// The parameters that are gathered and reduced together. Values are zero at first.
typedef struct sherd_unit sherd_unit;
// All ranks create the same units in one order. REQUIRES: `world` outlives the call only.
SHERD_C_CALL sherd_status sherd_unit_create(sherd_world* world, const char* name,
                                            const sherd_parameter* parameters, int32_t count,
                                            const sherd_unit_options* options, sherd_unit** unit);
SHERD_C_CALL void sherd_unit_free(sherd_unit* unit);
// The piece of parameter i that this rank owns, to be read and written between scopes.
SHERD_C_CALL sherd_status sherd_unit_local(sherd_unit* unit, int32_t i, sherd_buffer* buffer);

// Opens a scope: gathers the parameters and waits for them. `version` tells one state of the values
// from another: raise it whenever local pieces were written. COLLECTIVE, as all scopes are.
SHERD_C_CALL sherd_status sherd_unit_unshard(sherd_unit* unit, int64_t version);
// The whole parameter, while a scope is open; not to be written.
SHERD_C_CALL sherd_status sherd_unit_full(sherd_unit* unit, int32_t i, sherd_buffer* buffer);
// Closes the scope; the last one that is open frees the gathered parameters.
SHERD_C_CALL sherd_status sherd_unit_reshard(sherd_unit* unit);
// Opens a backward scope: gathers, and makes room for the gradients.
SHERD_C_CALL sherd_status sherd_unit_begin_backward(sherd_unit* unit, int64_t version);
// Where the gradient of the whole parameter i goes: one contribution a call. Sets *add to 1 if the
// buffer holds earlier ones, which must be added to, else to 0: then every element is written.
SHERD_C_CALL sherd_status sherd_unit_gradient(sherd_unit* unit, int32_t i, sherd_buffer* buffer,
                                              int32_t* add);
// Closes it: the gradients are reduced in the background, the gathered parameters freed.
SHERD_C_CALL sherd_status sherd_unit_end_backward(sherd_unit* unit);
// Leave a scope whose work failed, without communication. Never fail, do nothing without a scope.
// After a backward that was left, the unit's gradients are not to be used before
// sherd_unit_clear_gradients, on all ranks.
SHERD_C_CALL void sherd_unit_abandon_forward(sherd_unit* unit);
SHERD_C_CALL void sherd_unit_abandon_backward(sherd_unit* unit);

// How far gradients go when a backward scope closes. All patterns give the same sums.
enum {
  SHERD_SYNC_NONE = 0,  // they stay on this rank, whole, and later calls add to them
  SHERD_SYNC_FULL = 1   // they are reduced, the default
};
SHERD_C_CALL sherd_status sherd_unit_set_sync(sherd_unit* unit, int32_t sync);
// Reduces what SHERD_SYNC_NONE has left. COLLECTIVE.
SHERD_C_CALL sherd_status sherd_unit_finish_gradients(sherd_unit* unit);
// The gradient of sherd_unit_local(i), summed over ranks and calls since it was cleared; `data` is
// NULL if this rank has contributed none. Waits for reductions.
SHERD_C_CALL sherd_status sherd_unit_local_gradient(sherd_unit* unit, int32_t i,
                                                    sherd_buffer* buffer);
// Forgets the gradients of all parameters. Waits for reductions.
SHERD_C_CALL sherd_status sherd_unit_clear_gradients(sherd_unit* unit);

// ---- What a step cost ----

typedef struct sherd_step_stats {
  size_t size;
  int64_t wall_ns;
  int64_t gathers, gathered_bytes;              // of whole buffers
  int64_t reductions, reduced_bytes;            // the same
  int64_t exposed_gather_ns, exposed_other_ns;  // compute waited: communication not hidden
  int64_t current_bytes, peak_bytes;            // memory of the units and collectives
  int32_t complete;  // 0: the record was too short, figures are too small
} sherd_step_stats;

// Begins to record, with room for `events` records of 64 bytes, about 20 a call of a unit; 0:
// 32768. REQUIRES: no scope is open, no reduction in flight.
SHERD_C_CALL sherd_status sherd_world_record_steps(sherd_world* world, int64_t events);
// The figures since the latest call of this, or since recording began. Waits for reductions.
SHERD_C_CALL sherd_status sherd_world_step_stats(sherd_world* world, sherd_step_stats* stats);

#ifdef __cplusplus
}
#endif
