// Units: a model is a list of them, in the order in which a forward pass goes through them.
//
// A family names the units of its models (models/families.h). The pipeline cuts the list anywhere; over a cut travels
// what later units read of what earlier ones gave. A chunk of a model is built from a range of the list.
//
//   decoder               embedding, layers, prediction modules, head; "hidden" travels
//   encoder and decoder   … encoder layers, norm, decoder layers, …; "hidden" travels, and behind the norm "memory" too
//   two streams           … double blocks, single blocks, …; "image" and "text" travel
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megalith {

struct Bundle;  // nn/forward.h

// The letters of Megatron-LM's pipeline_model_parallel_layout.
enum class UnitLetter : char {
  kEmbedding = 'E',
  kLayer = 't',
  kPrediction = 'm',
  kHead = 'L',
  // A layout does not write it: it lies in the stage of the unit behind it, or of the one in front when that one
  // stays_with_next.
  kNone = 0,
};

// One unit's parameter that another one uses, such as the embedding's table that is also the weight of a tied head. A
// rank that has both units holds one Parameter. Where they lie on several ranks each holds a copy, and the gradients
// of the copies are summed.
struct UsedParameter {
  std::string unit;       // name of the unit that has it, which comes before those that use it
  std::string parameter;  // canonical name
};

struct Unit {
  std::string kind;    // says to its family what to build
  std::string name;    // canonical, of its layer or main module: "model.layers.3"; no two units have one name
  int64_t number = 0;  // among those of its kind, from 0
  UnitLetter letter = UnitLetter::kNone;
  int64_t layers_worth = 0;         // how much work it is, in layers
  std::vector<std::string> reads;   // tensors that units before it gave; inputs of the model are not named
  std::vector<std::string> gives;   // tensors that units behind it may read; they replace those of the same name
  std::vector<UsedParameter> uses;  // what other units have
  bool stays_with_next = false;     // no stage ends behind it
};

// Units first … end() - 1 of a list.
struct UnitRange {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const UnitRange&) const = default;
};
std::span<const Unit> units_in(std::span<const Unit> units, const UnitRange& range);

int64_t count_units(std::span<const Unit> units, UnitLetter letter);

// InternalError when the list contradicts itself: two units of one name, a tensor that is read before it is given, a
// parameter of a unit that does not come before.
void check_units(std::span<const Unit> units);

// The names of the tensors that travel over the border in front of units[begin], in the order in which later units
// first read them. Empty at both ends of the list.
std::vector<std::string> boundary_before(std::span<const Unit> units, int64_t begin);

// What a chunk of these units hands to the next one: what it gave, and what it received and only passes on.
// InternalError when a tensor that later units read is in neither.
Bundle outgoing_bundle(std::span<const Unit> units, const UnitRange& chunk, const Bundle& given,
                       const Bundle& received);

}  // namespace megalith
