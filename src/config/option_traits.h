// Properties of an option for code that does not know its name, declared with it.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace megalith {

template <typename Enum>
class SetOf {
 public:
  constexpr SetOf() = default;
  constexpr SetOf(std::initializer_list<Enum> members) {
    for (const Enum member : members) bits_ |= bit(member);
  }
  constexpr bool contains(Enum member) const { return (bits_ & bit(member)) != 0; }
  constexpr SetOf operator|(SetOf other) const { return SetOf(bits_ | other.bits_); }
  constexpr SetOf operator-(SetOf other) const { return SetOf(bits_ & ~other.bits_); }
  constexpr bool operator==(const SetOf&) const = default;

 private:
  explicit constexpr SetOf(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit(Enum member) { return uint32_t{1} << static_cast<uint32_t>(member); }
  uint32_t bits_ = 0;
};

// kGpt: a decoder; kT5: encoder and decoder; kBert: masked tokens and sentence pairs; kBiencoder: two encoders whose
// vectors are compared; kDiffusion: predicts noise in pictures; kClassifier: a decoder or encoder with a classifier as
// head.
enum class ModelType { kGpt, kT5, kBert, kBiencoder, kDiffusion, kClassifier };
inline constexpr std::array<std::string_view, 6> kModelTypeWords = {"gpt",       "t5",              "bert",
                                                                    "biencoder", "diffusion_model", "classifier"};
using ModelTypes = SetOf<ModelType>;
inline constexpr ModelTypes kPictureModels = {ModelType::kDiffusion};
inline constexpr ModelTypes kEncoderDecoders = {ModelType::kT5};
inline constexpr ModelTypes kBiencoders = {ModelType::kBiencoder};
inline constexpr ModelTypes kEncoders = {ModelType::kBert, ModelType::kBiencoder};
inline constexpr ModelTypes kClassifiers = {ModelType::kClassifier};
inline constexpr ModelTypes kStacks = ModelTypes{ModelType::kGpt} | kEncoders | kClassifiers;  // decoder layers
inline constexpr ModelTypes kTextModels = kStacks | kEncoderDecoders;
inline constexpr ModelTypes kAllModels = kTextModels | kPictureModels;

// Commands that take a run's options without training. In others, such as train and doctor, all options act.
enum class RunCommand { kGenerate, kEvaluate, kEmbed, kInspectLogits, kPlan, kBenchGemm, kBenchOperators };
using RunCommands = SetOf<RunCommand>;
inline constexpr RunCommands kTrainOnly = {};
inline constexpr RunCommands kBenches = {RunCommand::kBenchGemm, RunCommand::kBenchOperators};
inline constexpr RunCommands kOnLayouts = {RunCommand::kGenerate, RunCommand::kEvaluate, RunCommand::kEmbed};
inline constexpr RunCommands kWithWeights = kOnLayouts | RunCommands{RunCommand::kInspectLogits};
inline constexpr RunCommands kWithModel = kWithWeights | kBenches;
inline constexpr RunCommands kPlan = {RunCommand::kPlan};

// An option's fate when verify/ shrinks a configuration to a few ranks (verify/toy_config.h).
enum class InToy {
  kDefault,   // default: the check does not need it
  kKept,      // the person's value
  kMade,      // computed by verify/ from the person's
  kSetAside,  // default; a note tells if the person's differs
};

// Required agreement between a run's ranks.
enum class ByRank {
  kSame,
  kSameContents,  // the content of named files and folders; paths may differ
  kFree,          // nothing: it concerns one process or its machine
};

// Hold for a group's options unless overridden.
struct OptionTraits {
  bool changes_weights = false;  // shapes or meaning of weights: models that differ cannot share weights
  bool changes_numbers = true;   // results: resuming with another value gives a note
  InToy in_toy = InToy::kDefault;
  ByRank by_rank = ByRank::kSame;    // compared when the ranks meet (launch/meeting_terms.h)
  ModelTypes read_by = kAllModels;   // other models refuse non-default values (check_readers())
  RunCommands acts_in = kTrainOnly;  // others refuse it on their command line (cli/acting_options.h)

  // A copy with other readers.
  constexpr OptionTraits of(ModelTypes types) const {
    OptionTraits traits = *this;
    traits.read_by = types;
    return traits;
  }
};

}  // namespace megalith
