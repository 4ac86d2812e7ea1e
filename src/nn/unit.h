// A model is a list of units in forward order. Families name them (models/families.h); the pipeline cuts the list
// anywhere and sends what later units read from earlier ones.
//
//   decoder               embedding, layers, prediction modules, head; "hidden" travels
//   encoder and decoder   … encoder layers, norm, decoder layers, …; "hidden" travels, after the norm "memory" too
//   two streams           … double blocks, single blocks, …; "image" and "text" travel
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megalith {

struct Bundle;

// Megatron-LM's in pipeline_model_parallel_layout.
enum class UnitLetter : char {
  kEmbedding = 'E',
  kLayer = 't',
  kPrediction = 'm',
  kHead = 'L',
  // Unwritten: in the next unit's stage, or the previous one's if that stays_with_next.
  kNone = 0,
};

// Another unit's parameter, such as a tied head's embedding. A rank with both units holds one Parameter; several ranks
// hold copies, whose gradients are summed.
struct UsedParameter {
  std::string unit;       // its owner, before its users
  std::string parameter;  // canonical
};

struct Unit {
  std::string kind;    // tells the family what to build
  std::string name;    // canonical, of its layer or main module; unique
  int64_t number = 0;  // among its kind
  UnitLetter letter = UnitLetter::kNone;
  int64_t layers_worth = 0;        // its cost in layers
  std::vector<std::string> reads;  // from earlier units, not the model's inputs
  std::vector<std::string> gives;  // for later units, replacing equal names
  std::vector<UsedParameter> uses;
  bool stays_with_next = false;  // no stage ends after it
};

struct UnitRange {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const UnitRange&) const = default;
};
std::span<const Unit> units_in(std::span<const Unit> units, const UnitRange& range);

int64_t count_units(std::span<const Unit> units, UnitLetter letter);

// InternalError for duplicate names, or tensors and parameters used before they are given.
void check_units(std::span<const Unit> units);

// Tensors sent across the border before units[begin], in the order of their first use. Empty at both ends.
std::vector<std::string> boundary_before(std::span<const Unit> units, int64_t begin);

// The tensor that a chunk sends on, given or received. InternalError if one is missing.
Bundle outgoing_bundle(std::span<const Unit> units, const UnitRange& chunk, const Bundle& given,
                       const Bundle& received);

}  // namespace megalith
