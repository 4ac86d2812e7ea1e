// What code that knows no option by name must know of one, said beside its declaration.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace megalith {

// A set of enumerators.
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

// What a model is: a decoder that continues texts, an encoder and a decoder, an encoder that tells masked tokens and
// pairs of sentences, two encoders whose vectors are compared, a transformer that tells noise from pictures, or a
// decoder or an encoder with a classifier in place of its head.
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

// Commands that take options of a run and do not train. In others, such as train and doctor, all options act.
enum class RunCommand { kGenerate, kEvaluate, kEmbed, kInspectLogits, kPlan, kBenchGemm, kBenchOperators };
using RunCommands = SetOf<RunCommand>;
inline constexpr RunCommands kTrainOnly = {};
inline constexpr RunCommands kBenches = {RunCommand::kBenchGemm, RunCommand::kBenchOperators};
inline constexpr RunCommands kOnLayouts = {RunCommand::kGenerate, RunCommand::kEvaluate, RunCommand::kEmbed};
inline constexpr RunCommands kWithWeights = kOnLayouts | RunCommands{RunCommand::kInspectLogits};
inline constexpr RunCommands kWithModel = kWithWeights | kBenches;
inline constexpr RunCommands kPlan = {RunCommand::kPlan};

// What happens to an option when verify/ shrinks a configuration to check it on a few ranks (verify/toy_config.h).
enum class InToy {
  kDefault,   // the check does not need it: it gets its default
  kKept,      // it keeps the person's value
  kMade,      // verify/ computes a value from the person's
  kSetAside,  // it gets its default, and the person is told when theirs differs
};

// What the ranks of a run must have in common.
enum class ByRank {
  kSame,          // the value
  kSameContents,  // what the files and folders that it names hold; where they are may differ
  kFree,          // nothing: it is about one process or its machine
};

// A group's traits hold for its options unless one differs.
struct OptionTraits {
  bool changes_weights = false;  // the weights' shapes or what their values mean: models that differ share no weights
  bool changes_numbers = true;   // what a run computes: a run that resumes with another value says so
  InToy in_toy = InToy::kDefault;
  ByRank by_rank = ByRank::kSame;    // compared when the ranks meet (launch/meeting_terms.h)
  ModelTypes read_by = kAllModels;   // another model refuses a value that is not the default (check_readers())
  RunCommands acts_in = kTrainOnly;  // the others refuse it on their command line (cli/acting_options.h)

  // The same but for who reads them.
  constexpr OptionTraits of(ModelTypes types) const {
    OptionTraits traits = *this;
    traits.read_by = types;
    return traits;
  }
};

}  // namespace megalith
