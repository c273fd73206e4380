#include "llm/summary.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "llm/format.h"

namespace llm {
namespace {

// A loss in nats per byte in the unit compressors use.
double BitsPerByte(double nats) { return nats / std::log(2.0); }

std::string Effective(const Options& o, const sherd::LaunchInfo& launch) {
  if (o.token_budget > 0) {
    return absl::StrCat("micro-batches of up to ", o.token_budget, " tokens on ",
                        Counted(launch.size, "rank"));
  }
  return absl::StrCat("up to ", Counted(RowsOf(o, launch.size), "row"), " x ",
                      Counted(launch.size, "rank"), " x ", o.micro_batches, " micro-batch",
                      o.micro_batches == 1 ? "" : "es");
}

std::vector<Report::Headline> Headlines(const Dataset& data, const TrainingResult& r,
                                        const std::vector<StepRecord>& steps,
                                        std::optional<double> bigram_loss) {
  const StepRecord& last = steps.back();
  const auto tokens = static_cast<double>(last.tokens);
  std::vector<Report::Headline> headlines = {
      {"Validation loss", absl::StrFormat("%.4f", r.validation_loss),
       data.bytes()
           ? absl::StrFormat("nats per byte = %.3f bits", BitsPerByte(r.validation_loss))
           : absl::StrFormat("nats per token, perplexity %.4g", std::exp(r.validation_loss))}};
  if (r.loss_before) {
    headlines.push_back({"Before training", absl::StrFormat("%.4f", *r.loss_before),
                         "the weights it started from, on the same text"});
  }
  if (bigram_loss) {
    headlines.push_back({"Byte bigram", absl::StrFormat("%.4f", *bigram_loss),
                         absl::StrFormat("fitted on the same text; %.4f %s",
                                         std::abs(*bigram_loss - r.validation_loss),
                                         r.validation_loss < *bigram_loss ? "worse" : "better")});
  }
  headlines.insert(headlines.end(),
                   {{"Tokens per second", FormatCount(PerSecond(tokens, steps)),
                     absl::StrCat(FormatCount(tokens), " tokens in ", Counted(last.step, "step"))},
                    {"Training time", FormatSeconds(last.seconds), "with validation"},
                    {"Peak memory", FormatBytes(last.peak_bytes), "of the fullest rank"}});
  return headlines;
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

Report::Section TrainingSection(const Options& o, const sherd::LaunchInfo& launch) {
  return {"Training",
          {{"Batch", absl::StrCat(o.batch, " samples of up to ", o.seq, " tokens")},
           {"Effective batch", Effective(o, launch)},
           {"Losses divided by", "the window's labels on all ranks (kWindow)"},
           {"Learning rate", absl::StrCat(o.lr, " falling to ", o.min_lr)},
           {"Warm-up", Counted(o.warmup, "step")},
           {"Weight decay", absl::StrCat(o.weight_decay)},
           {"Clipping", o.clip > 0 ? absl::StrCat("norm of ", o.clip) : "off"},
           {"Seed", absl::StrCat(o.seed)}}};
}

Report::Section RunSection(const Options& o, const sherd::LaunchInfo& launch, const Dataset& data) {
  const std::string tokens = absl::StrCat(data.bytes() ? "Bytes" : "Tokens");
  Report::Facts facts = FactsOfRun(launch, o.threads, o.checkpoint, o.reshard);
  facts.insert(
      facts.end(),
      {{"Data", absl::StrJoin(o.data, ", ")},
       {tokens + " to learn", FormatCount(static_cast<double>(data.train_tokens()))},
       {tokens + " to validate", FormatCount(static_cast<double>(data.validation_tokens()))},
       {"Samples to learn", absl::StrCat(data.train().size())},
       {"Validation samples", absl::StrCat(data.validation().size())}});
  return {"Run", std::move(facts)};
}

}  // namespace

std::string Announcement(const Options& o, const sherd::LaunchInfo& launch, const Dataset& data) {
  return absl::StrCat(Counted(o.layers, "block"), " of width ", o.dim, " in ",
                      o.f64 ? "f64" : "f32", ", ", RanksAndThreads(launch, o.threads), ", ",
                      o.batch, " x ", o.seq, " ", data.unit(), "s a step (", Effective(o, launch),
                      "), ", FormatCount(static_cast<double>(data.train_tokens())), " ",
                      data.unit(), "s to learn and ",
                      FormatCount(static_cast<double>(data.validation_tokens())), " to validate");
}

Report MakeReport(const Options& o, const sherd::LaunchInfo& launch, const Dataset& data,
                  const TrainingResult& r, std::vector<StepRecord> steps,
                  std::optional<double> bigram_loss) {
  Report report;
  report.title = absl::StrCat("A language model of ", data.unit(), "s");
  report.subtitle = Announcement(o, launch, data);
  report.headlines = Headlines(data, r, steps, bigram_loss);
  report.sections = {ModelSection(o, r), TrainingSection(o, launch), RunSection(o, launch, data)};
  report.steps = std::move(steps);
  if (r.loss_before) report.before = StepRecord{.validation_loss = r.loss_before};
  report.unit = data.unit();
  report.bigram_loss = bigram_loss;
  report.memory = r.memory;
  report.prompt = o.prompt;
  report.sample = r.sample;
  return report;
}

}  // namespace llm
