#include "llm/summary.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "llm/format.h"

namespace llm {
namespace {

std::string Counted(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string OnOff(bool on) { return on ? "on" : "off"; }

std::string RanksAndThreads(const Options& o, const sherd::LaunchInfo& launch) {
  return absl::StrCat(Counted(launch.size, "rank"), " x ", Counted(o.threads, "thread"));
}

// A loss in nats per byte in the unit compressors use.
double BitsPerByte(double nats) { return nats / std::log(2.0); }

std::vector<Report::Headline> Headlines(const TrainingResult& r,
                                        const std::vector<StepRecord>& steps, double bigram_loss) {
  const StepRecord& last = steps.back();
  double seconds = 0.0;
  for (const StepRecord& step : steps) {
    const double tokens = static_cast<double>(last.tokens) / static_cast<double>(steps.size());
    seconds += tokens / step.tokens_per_second;
  }
  return {{"Validation loss", absl::StrFormat("%.4f", r.validation_loss),
           absl::StrFormat("nats per byte = %.3f bits", BitsPerByte(r.validation_loss))},
          {"Byte bigram", absl::StrFormat("%.4f", bigram_loss),
           absl::StrFormat("fitted on the same text; %.4f %s",
                           std::abs(bigram_loss - r.validation_loss),
                           r.validation_loss < bigram_loss ? "worse" : "better")},
          {"Tokens per second", FormatCount(static_cast<double>(last.tokens) / seconds),
           absl::StrCat(FormatCount(static_cast<double>(last.tokens)), " tokens in ",
                        Counted(last.step, "step"))},
          {"Training time", FormatSeconds(last.seconds), "with validation"},
          {"Peak memory", FormatBytes(last.peak_bytes), "of the fullest rank"}};
}

Report::Section ModelSection(const Options& o, const TrainingResult& r) {
  return {"Model",
          {{"Parameters", FormatCount(static_cast<double>(r.parameters))},
           {"Blocks", absl::StrCat(o.layers)},
           {"Width", absl::StrCat(o.dim)},
           {"Heads", absl::StrCat(o.heads, " of size ", o.head_size())},
           {"Key and value heads", absl::StrCat(o.kv_heads)},
           {"Feed-forward width", absl::StrCat(o.ffn_size())},
           {"Head", o.tied ? "the embedding's table" : "weights of its own"},
           {"Dropout", absl::StrCat(o.dropout)},
           {"Numbers", o.f64 ? "f64" : "f32"}}};
}

Report::Section TrainingSection(const Options& o) {
  return {"Training",
          {{"Batch", absl::StrCat(o.batch, " samples of ", o.seq, " bytes")},
           {"Micro-batches", absl::StrCat(o.micro_batches)},
           {"Learning rate", absl::StrCat(o.lr, " falling to ", o.min_lr)},
           {"Warm-up", Counted(o.warmup, "step")},
           {"Weight decay", absl::StrCat(o.weight_decay)},
           {"Clipping", o.clip > 0 ? absl::StrCat("norm of ", o.clip) : "off"},
           {"Seed", absl::StrCat(o.seed)}}};
}

Report::Section RunSection(const Options& o, const sherd::LaunchInfo& launch, const TextData& text,
                           const TrainingResult& r) {
  return {"Run",
          {{"Ranks", RanksAndThreads(o, launch)},
           {"Started by", launch.launcher == sherd::Launcher::kNone
                              ? std::string("hand, as one process")
                              : std::string(sherd::NameOf(launch.launcher))},
           {"Checkpointing", OnOff(o.checkpoint)},
           {"Reshard after forward", OnOff(o.reshard)},
           {"Text", absl::StrJoin(o.data, ", ")},
           {"Bytes to learn", FormatCount(static_cast<double>(text.train.size()))},
           {"Bytes to validate", FormatCount(static_cast<double>(text.validation.size()))},
           {"Validation samples", absl::StrCat(r.validation.size())}}};
}

}  // namespace

std::string Announcement(const Options& o, const sherd::LaunchInfo& launch, const TextData& text) {
  return absl::StrCat(Counted(o.layers, "block"), " of width ", o.dim, " in ",
                      o.f64 ? "f64" : "f32", ", ", RanksAndThreads(o, launch), ", ", o.batch, " x ",
                      o.seq, " bytes a step, ", FormatCount(static_cast<double>(text.train.size())),
                      " bytes to learn and ",
                      FormatCount(static_cast<double>(text.validation.size())), " to validate");
}

Report MakeReport(const Options& o, const sherd::LaunchInfo& launch, const TextData& text,
                  const TrainingResult& r, std::vector<StepRecord> steps, double bigram_loss) {
  Report report;
  report.title = "A language model of bytes";
  report.subtitle = Announcement(o, launch, text);
  report.headlines = Headlines(r, steps, bigram_loss);
  report.sections = {ModelSection(o, r), TrainingSection(o), RunSection(o, launch, text, r)};
  report.steps = std::move(steps);
  report.bigram_loss = bigram_loss;
  report.memory = r.memory;
  report.prompt = o.prompt;
  report.sample = r.sample;
  return report;
}

}  // namespace llm
