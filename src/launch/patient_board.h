// A SharedBoard queried on its own thread, abandoned if a stopped server never replies.
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

  // Null if the question threw or, with earlier ones, took longer than patience_s. It may outlive the call: it must own
  // what it uses.
  template <typename Result>
  std::optional<Result> ask(std::function<Result(SharedBoard&)> question, double patience_s) {
    const auto result = std::make_shared<std::optional<Result>>();
    if (!run([result, question = std::move(question)](SharedBoard& board) { result->emplace(question(board)); },
             patience_s)) {
      return std::nullopt;
    }
    return *result;
  }

  // Does not wait; dropped while another is pending.
  void post(std::function<void(SharedBoard&)> question);

  // A question threw: the server is gone.
  bool is_gone() const;

 private:
  using Question = std::function<void(SharedBoard&)>;
  struct State;
  bool run(Question question, double patience_s);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace megalith
