//! The texts of the demo, in English and in Chinese, and the files of its project.

/// All texts in one language.
pub(super) struct Texts {
    /// The bundled tape.
    pub(super) tape: &'static str,
    /// Names and contents of the files in the project.
    pub(super) files: [(&'static str, &'static str); 3],
    pub(super) intro: &'static str,
    pub(super) no_sandbox: &'static str,
    pub(super) task: &'static str,
    pub(super) task_message: &'static str,
    pub(super) approved: &'static str,
    pub(super) check: &'static str,
    pub(super) not_fixed: &'static str,
    pub(super) question: &'static str,
    pub(super) question_message: &'static str,
    pub(super) record: &'static str,
    pub(super) cost: &'static str,
    pub(super) next_steps: &'static str,
    /// The last words if the check still fails.
    pub(super) unsuccessful: &'static str,
}

const CHECK: &str = "total=$(sh total.sh)\nif [ \"$total\" = 42 ]; then echo \"ok: the total is 42\"; else\n  echo \"FAIL: expected 42, got $total\"; exit 1\nfi\n";
const TOTAL: &str =
    "# Prints the sum of all prices.\nawk '{ sum += $2 } END { print sum }' prices.txt\n";
const PRICES: &str = "apples 3 12\nbread 1 9\ncheese 2 21\n";

pub(super) fn for_language(language: &str) -> &'static Texts {
    match language {
        "zh" => &CHINESE,
        _ => &ENGLISH,
    }
}

static ENGLISH: Texts = Texts {
    tape: include_str!("tape.en.jsonl"),
    files: [("check.sh", CHECK), ("total.sh", TOTAL), ("prices.txt", PRICES)],
    intro: "bub demo

No model is called in this demo. The answers of the model are replayed from a tape that
is part of bub. Everything else is real: the runtime, the tools, the sandbox, the
approval and the new tape. Home and project are temporary.

",
    no_sandbox: "This machine cannot confine commands, so the scripts of the demo run without the sandbox.
`bub doctor` explains why.

",
    task: "1. The project has a script with a failing check. The agent finds the reason and fixes it.
   Before it changes a file, it asks you.

",
    task_message: "The check fails. Find out why and fix it.",
    approved: "(--yes: the edit of total.sh is approved without a question)\n\n",
    check: "2. Is it true? A message that starts with a comma is a command and does not go to the model.

",
    not_fixed: "The check still fails, because the edit was not approved. The demo skips step 3, a question
about the fix. If the recorded model claims above that the check passes, that is wrong: it only
repeats its recording.

",
    question: "3. The agent has handed off: its context starts again with a summary. What is no longer
   in the context is still on the tape, where the agent can search.

",
    question_message: "What did the check print before the fix?",
    record: "4. Everything is on the tape of the session: messages, calls, results, the approval, anchors.

",
    cost: "5. {calls} model calls, about {input} input and {output} output tokens.
   With {model} they would have cost about {cost}. This demo cost nothing.

",
    next_steps: "Next steps
   bub onboard         set up a model, or use a key that is in your environment
   bub chat            chat with the agent in your own project
   bub replay SESSION  run a recorded conversation again, with another model or prompt
",
    unsuccessful: "
The check was not fixed, because you did not approve the edit. Run `bub demo` again to see the fix.
",
};

static CHINESE: Texts = Texts {
    tape: include_str!("tape.zh.jsonl"),
    files: [
        ("check.sh", CHECK),
        ("total.sh", TOTAL),
        ("prices.txt", PRICES),
    ],
    intro: "bub 演示

本演示不调用任何模型。模型的回答来自 bub 自带的一份磁带（tape）录音，按原样回放。
其余一切都是真实的：运行时、工具、沙箱、审批和新写的磁带。主目录和项目都是临时的。

",
    no_sandbox: "这台机器无法限制命令，因此演示脚本在沙箱之外运行。`bub doctor` 会说明原因。

",
    task: "1. 项目里有一个脚本，它的检查失败了。智能体会找出原因并修复。
   修改文件之前，它会先询问你。

",
    task_message: "检查失败了。请找出原因并修复。",
    approved: "（--yes：对 total.sh 的修改已直接批准）\n\n",
    check: "2. 真的修好了吗？以逗号开头的消息是命令，不会发给模型。

",
    not_fixed: "检查仍然失败，因为修改没有获得批准。演示跳过第 3 步，也就是关于修复的问题。
如果上面录下的模型声称检查通过，那是不对的：它只是重复录音。

",
    question: "3. 智能体已经交接（handoff）：它的上下文从一份摘要重新开始。
   不在上下文里的内容仍在磁带上，智能体可以搜索。

",
    question_message: "修复之前，检查输出了什么？",
    record: "4. 一切都记录在会话的磁带上：消息、调用、结果、审批、锚点。

",
    cost: "5. 共 {calls} 次模型调用，约 {input} 个输入 token 和 {output} 个输出 token。
   使用 {model} 大约需要 {cost}。本演示没有产生费用。

",
    next_steps: "下一步
   bub onboard         设置模型，或使用环境中已有的密钥
   bub chat            在你自己的项目里与智能体对话
   bub replay SESSION  用另一个模型或提示词重新运行一段录下的对话
",
    unsuccessful: "
检查没有修好，因为你没有批准修改。再次运行 `bub demo` 可以看到修复过程。
",
};
