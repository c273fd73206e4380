#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace data {

// Labels with this value have no loss.
inline constexpr int64_t kIgnored = -100;

// Tokens that follow one another in documents.
//
// Threads: any number may read.
class Documents {
 public:
  virtual ~Documents() = default;

  // Where each document begins among the tokens, and behind the last the number of tokens, so one
  // entry more than documents. Does not fall. Ownership: valid while this object lives.
  virtual std::span<const int64_t> bounds() const = 0;
  // Writes the tokens from `begin` on. REQUIRES: they lie inside.
  virtual void Copy(int64_t begin, std::span<int64_t> out) const = 0;

  int64_t tokens() const { return bounds().back(); }
};

// Documents in memory.
class DocumentList : public Documents {
 public:
  // Appends a document, which may be empty.
  void Add(std::span<const int64_t> tokens);

  std::span<const int64_t> bounds() const override { return bounds_; }
  void Copy(int64_t begin, std::span<int64_t> out) const override;

 private:
  std::vector<int64_t> tokens_;
  std::vector<int64_t> bounds_ = {0};
};

// Several sources one behind the other, as files of one data set.
class JoinedDocuments : public Documents {
 public:
  // Ownership: the parts outlive this object.
  explicit JoinedDocuments(std::vector<const Documents*> parts);

  std::span<const int64_t> bounds() const override { return bounds_; }
  void Copy(int64_t begin, std::span<int64_t> out) const override;

 private:
  std::vector<const Documents*> parts_;
  std::vector<int64_t> starts_;  // the first token of each part
  std::vector<int64_t> bounds_ = {0};
};

// The tokens [begin, end) of another source, as a part held out; a document that is cut is two.
class DocumentSlice : public Documents {
 public:
  // Ownership: `all` outlives this object. REQUIRES: 0 <= begin <= end <= all.tokens().
  DocumentSlice(const Documents& all, int64_t begin, int64_t end);

  std::span<const int64_t> bounds() const override { return bounds_; }
  void Copy(int64_t begin, std::span<int64_t> out) const override {
    all_.Copy(begin_ + begin, out);
  }

 private:
  const Documents& all_;
  const int64_t begin_;
  std::vector<int64_t> bounds_ = {0};
};

}  // namespace data
