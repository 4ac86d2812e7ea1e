// A SharedBoard that is asked by a thread of its own, so that whoever asks can give up: a reply from a process that was
// stopped never comes. What is still being asked when this object goes is left behind with its thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "launch/watchdog.h"

namespace megalith {

class PatientBoard {
 public:
  explicit PatientBoard(std::shared_ptr<SharedBoard> board);
  ~PatientBoard();
  PatientBoard(const PatientBoard&) = delete;
  PatientBoard& operator=(const PatientBoard&) = delete;

  // Result of question(board), or nothing when it threw or has not returned within patience_s, the time for questions
  // before it included. The question may outlive the call: it owns what it uses.
  template <typename Result>
  std::optional<Result> ask(std::function<Result(SharedBoard&)> question, double patience_s) {
    const auto result = std::make_shared<std::optional<Result>>();
    if (!run([result, question = std::move(question)](SharedBoard& board) { result->emplace(question(board)); },
             patience_s)) {
      return std::nullopt;
    }
    return *result;
  }

  // Asks without waiting; does nothing while another question is open.
  void post(std::function<void(SharedBoard&)> question);

  // A question threw: nobody answers there any more.
  bool is_gone() const;

 private:
  using Question = std::function<void(SharedBoard&)>;
  struct State;
  bool run(Question question, double patience_s);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace megalith
