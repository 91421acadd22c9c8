#include "runner/tag_expression.h"

#include <algorithm>
#include <stdexcept>

namespace kvrope::regress {

// Recursive descent: `not` binds closest, then `and`, then `or`.
class TagParser {
 public:
  using Step = TagExpression::Step;

  TagParser(const std::string& text, std::vector<Step>& steps) : text_(text), steps_(steps) { advance(); }

  void parse() {
    disjunction();
    if (!word_.empty()) fail("an operator before \"" + word_ + "\"");
  }

 private:
  void disjunction() {
    conjunction();
    while (word_ == "or" || word_ == ",") {
      advance();
      conjunction();
      steps_.push_back({Step::Kind::disjunction, ""});
    }
  }

  void conjunction() {
    operand();
    while (word_ == "and") {
      advance();
      operand();
      steps_.push_back({Step::Kind::conjunction, ""});
    }
  }

  void operand() {
    if (word_ == "not") {
      advance();
      operand();
      steps_.push_back({Step::Kind::negation, ""});
    } else if (word_ == "(") {
      advance();
      disjunction();
      if (word_ != ")") fail("\")\"");
      advance();
    } else {
      bool is_tag = !word_.empty() && word_ != ")" && word_ != "," && word_ != "and" && word_ != "or";
      if (!is_tag) fail("a tag" + (word_.empty() ? "" : " before \"" + word_ + "\""));
      steps_.push_back({Step::Kind::tag, word_});
      advance();
    }
  }

  void advance() {
    const char* marks = "(),";
    at_ = std::min(text_.find_first_not_of(' ', at_), text_.size());
    size_t end = std::min(text_.find_first_of(" (),", at_), text_.size());
    if (at_ < text_.size() && std::string(marks).find(text_[at_]) != std::string::npos) end = at_ + 1;
    word_ = text_.substr(at_, end - at_);
    at_ = end;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw std::invalid_argument("expected " + expected + " in \"" + text_ + "\"");
  }

  const std::string& text_;
  std::vector<Step>& steps_;
  size_t at_ = 0;
  std::string word_;  // empty at the end
};

TagExpression::TagExpression(const std::string& text) {
  if (!text.empty()) TagParser(text, steps_).parse();
}

bool TagExpression::matches(const std::vector<std::string>& tags) const {
  std::vector<bool> stack;
  auto pop = [&] {
    bool top = stack.back();
    stack.pop_back();
    return top;
  };
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::tag:
        stack.push_back(std::find(tags.begin(), tags.end(), step.tag) != tags.end());
        break;
      case Step::Kind::negation:
        stack.push_back(!pop());
        break;
      case Step::Kind::conjunction: {
        bool right = pop(), left = pop();
        stack.push_back(left && right);
        break;
      }
      case Step::Kind::disjunction: {
        bool right = pop(), left = pop();
        stack.push_back(left || right);
        break;
      }
    }
  }
  return stack.empty() || stack.back();
}

}  // namespace kvrope::regress
