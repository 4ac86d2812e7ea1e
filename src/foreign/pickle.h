// Python's pickles, read without Python: opcodes build a tree of plain values, and nothing is called.
//
// A class or function is a name on a closed list (pickle_names.cc); its arguments are items, what it was given as
// state its state. OrderedDict is a dict, torch.Size a tuple. Every other name is refused.
//
// Files are untrusted: an opcode makes at most one value, and copies of items are counted, so memory is bounded by the
// pickle's bytes, which are bounded; no opcode recurses. Values may share parts or hold themselves: who walks through
// them counts (for_each_item).
// Source: CPython, Lib/pickletools.py (protocols 2 to 5).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct PickleValue {
  enum class Kind { kNone, kBool, kInt, kFloat, kText, kBytes, kList, kTuple, kDict, kName, kObject, kStored };

  Kind kind = Kind::kNone;
  int64_t integer = 0;    // kBool, kInt
  double real = 0;        // kFloat
  std::string_view text;  // kText, kBytes, whole numbers beyond 64 bits; kName, kObject: "collections.OrderedDict"
  std::vector<const PickleValue*> items;  // kDict: key, value, key, value, …; kObject: arguments; kStored: the one id
  const PickleValue* state = nullptr;     // kObject: BUILD's

  bool is(Kind other) const { return kind == other; }
  bool is_object(std::string_view name) const { return kind == Kind::kObject && text == name; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }

  // In a dict, or the fields of an object (argparse.Namespace, dataclasses); null if absent.
  const PickleValue* find(std::string_view key) const;
  const PickleValue* find(int64_t key) const;
  // Entries of dicts, and fields, with keys of any kind.
  void for_each_entry(const std::function<void(const PickleValue& key, const PickleValue& value)>& visit) const;
  // Whole numbers, and floating-point ones.
  std::optional<double> number() const;
  // kInt only.
  std::optional<int64_t> whole() const;
  // Lists and tuples of whole numbers; nothing if anything else is in it.
  std::optional<std::vector<int64_t>> whole_numbers() const;
  // As options are written: true, 12, 0.001, text; nothing for other values.
  std::optional<std::string> option_text() const;
};

class Pickle {
 public:
  // `bytes` outlives it. where: "FILE: data.pkl". UserError names the position, and a class that is not on the list.
  Pickle(std::string_view bytes, std::string where);

  const PickleValue& root() const { return *root_; }
  const std::string& where() const { return where_; }

 private:
  friend class PickleReader;

  std::string where_;
  std::deque<PickleValue> values_;
  std::deque<std::string> texts_;  // joined names
  const PickleValue* root_ = nullptr;
};

// Walks through dicts, lists and tuples: visit("a.b.0", value) for every other value. UserError beyond `max_depth`, a
// million values or 10 kB of path, as a small pickle can describe an endless tree.
void for_each_item(const Pickle& pickle, const PickleValue& from,
                   const std::function<void(const std::string& path, const PickleValue& value)>& visit,
                   int max_depth = 24);

}  // namespace megalith
