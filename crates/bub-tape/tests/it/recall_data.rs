//! Generated conversations with questions whose evidence is known, in English and Chinese.
//!
//! Two users talk about facts. A question uses other forms and another order of the words. Distractors mention the
//! same things: the answer of the other person, similar facts with other details, and small talk.

/// A conversation and its questions.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The date and the text of each message.
    pub(crate) messages: Vec<(String, String)>,
    pub(crate) questions: Vec<Question>,
}

#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) keywords: String,
    /// Indexes of the messages that answer the question. Each is enough.
    pub(crate) evidence: Vec<usize>,
}

/// A kind of fact. In the texts, `{a}` to `{c}` are details, `{me}` is the speaker and `{you}` the other person.
struct Topic {
    facts: &'static [&'static str],
    replies: &'static [&'static str],
    questions: &'static [&'static str],
    keywords: &'static str,
    details: [&'static str; 3],
}

const ENGLISH: &[Topic] = &[
    Topic {
        facts: &[
            "I flew to {a} with {b} last week and we hiked up to the {c}.",
            "{b} and I took the train to {a}; the climb to the {c} was worth it.",
        ],
        replies: &[
            "{a} must be beautiful, I always wanted to go there.",
            "A {c}? You are brave!",
        ],
        questions: &[
            "When did {me} visit the {c} in {a}?",
            "Who went to {a} with {me} to see the {c}?",
        ],
        keywords: "{me} {a} {c}",
        details: [
            "Lisbon Oslo Kyoto Prague Quito Tallinn Bergen",
            "my sister|my cousin|an old friend|my father|my neighbor",
            "lighthouse waterfall monastery glacier castle canyon volcano",
        ],
    },
    Topic {
        facts: &[
            "Guess what, I bought a {a} {b} at the {c}.",
            "I could not resist: a {a} {b}, found at the {c}.",
        ],
        replies: &[
            "A {b}! Show me a picture.",
            "The {c} always has nice things.",
        ],
        questions: &[
            "What did {me} buy at the {c}?",
            "Where was the {a} {b} of {me} bought?",
        ],
        keywords: "{me} bought {b} {c}",
        details: [
            "red green striped wooden golden velvet silver",
            "lamp bicycle carpet guitar teapot mirror coat",
            "flea market|museum shop|garage sale|night market|auction",
        ],
    },
    Topic {
        facts: &[
            "I started a {a} class on {b}, the teacher studied in {c}.",
            "My {a} lessons are on {b} now. The teacher is from {c}.",
        ],
        replies: &[
            "Classes are a great way to make friends.",
            "{b} is when I work late, sadly.",
        ],
        questions: &[
            "On which day are the {a} classes of {me}?",
            "Where does the {a} teacher of {me} come from?",
        ],
        keywords: "{me} {a} class teacher",
        details: [
            "pottery salsa violin archery baking drawing judo",
            "Mondays Tuesdays Wednesdays Thursdays Fridays Saturdays",
            "Vienna Dublin Havana Seoul Geneva Cairo",
        ],
    },
    Topic {
        facts: &[
            "We adopted a {a} from the shelter and named it {b}. It is afraid of {c}.",
            "Meet {b}, our new {a}! It hides from {c}.",
        ],
        replies: &[
            "Pets change everything, congratulations!",
            "{b} is such a good name.",
        ],
        questions: &[
            "What is the {a} of {me} called?",
            "What is {me}'s {a} scared or afraid of?",
        ],
        keywords: "{me} {a} named",
        details: [
            "kitten puppy parrot rabbit turtle hamster",
            "Biscuit Luna Pepper Mango Ziggy Olive",
            "thunder vacuums balloons umbrellas mirrors doorbells",
        ],
    },
    Topic {
        facts: &[
            "I decided to move the {a} to {b} because of {c}.",
            "After a long meeting we are migrating the {a} to {b}; the reason is {c}.",
        ],
        replies: &[
            "Migrations are painful, good luck.",
            "{c} again? We had the same problem.",
        ],
        questions: &[
            "Why was the {a} moved to {b}?",
            "What did {me} decide about the {a}?",
        ],
        keywords: "{a} {b} decision",
        details: [
            "billing service|user database|build cluster|mail queue|photo archive",
            "Postgres Frankfurt Kubernetes Debian FreeBSD",
            "latency costs compliance backups licensing",
        ],
    },
    Topic {
        facts: &[
            "The doctor asked me to stop eating {a}, so now I cook {b} with {c}.",
            "No more {a} for me, my stomach hates it. {b} with {c} is my new favorite.",
        ],
        replies: &[
            "Health first! {b} sounds tasty.",
            "I could not live without {a}.",
        ],
        questions: &[
            "What should {me} not eat any more?",
            "What does {me} cook with {c}?",
        ],
        keywords: "{me} cooks {b} {c}",
        details: [
            "cheese peanuts bread shrimp chocolate",
            "lentils risotto noodles pumpkin dumplings",
            "ginger coconut saffron basil mushrooms",
        ],
    },
    Topic {
        facts: &[
            "My {a} won a prize at the {b}, the jury liked the {c}.",
            "They awarded my {a} at the {b}! Mostly because of the {c}.",
        ],
        replies: &[
            "That is amazing news, I am so proud of you.",
            "The {b} is hard to get into.",
        ],
        questions: &[
            "At which event did {me} win a prize for the {a}?",
            "What did the jury like about {me}'s {a}?",
        ],
        keywords: "{me} prize {a}",
        details: [
            "novel painting documentary sculpture poem recipe",
            "harvest festival|city library|film week|spring fair|science night",
            "colors ending rhythm texture humor",
        ],
    },
];

const ENGLISH_SMALL_TALK: &[&str] = &[
    "How was your week? Mine went by so fast.",
    "I know what you mean, it has been a busy time.",
    "That sounds great, tell me more!",
    "Thanks for asking, I am doing well.",
    "What are you up to this weekend?",
    "I did not sleep much, but I feel good.",
    "You always know what to say.",
    "When did you find the time to do all of that?",
    "It was so good to see you, we should do it again soon.",
    "I have to go now, talk to you later!",
    "The weather was awful, so we stayed at home.",
    "What did you decide in the end?",
];

const CHINESE: &[Topic] = &[
    Topic {
        facts: &[
            "上周我和{b}坐火车去了{a}，还爬上了{c}。",
            "我跟{b}一起飞到{a}，在{c}待了一整天。",
        ],
        replies: &["{a}一定很漂亮，我一直想去。", "{c}人多吗？听说要排队。"],
        questions: &["{me}是什么时候去{a}看{c}的？", "谁陪{me}一起去的{a}的{c}？"],
        keywords: "{me} {a} {c}",
        details: [
            "成都 大连 桂林 敦煌 拉萨 厦门",
            "妹妹|表哥|老同学|父亲|邻居",
            "古城墙 玻璃栈道 莫高窟 灯塔 温泉山庄",
        ],
    },
    Topic {
        facts: &[
            "我在{c}买了一个{a}的{b}，很喜欢。",
            "没忍住，又从{c}带回来一个{a}{b}。",
        ],
        replies: &["{b}好看吗？拍张照片给我。", "{c}的东西总是很有意思。"],
        questions: &["{me}在{c}买了什么东西？", "{me}的{a}{b}是在哪里买的？"],
        keywords: "{me} {b} {c}",
        details: [
            "红色 木头 银色 条纹 手工",
            "台灯 自行车 茶壶 吉他 地毯",
            "旧货市场 博物馆商店 夜市 拍卖会",
        ],
    },
    Topic {
        facts: &[
            "我们决定把{a}迁移到{b}，主要是因为{c}。",
            "开会讨论了很久，{a}要换成{b}，原因是{c}。",
        ],
        replies: &["迁移很麻烦，祝你顺利。", "又是{c}的问题，我们也遇到过。"],
        questions: &[
            "为什么要把{a}迁移到{b}？",
            "关于{a}，{me}最后是怎么决定的？",
        ],
        keywords: "{a} {b} 决定",
        details: [
            "用户数据库 计费服务 邮件队列 照片存档",
            "云平台 法兰克福机房 容器集群 新框架",
            "延迟太高 成本 合规要求 备份失败",
        ],
    },
    Topic {
        facts: &[
            "我们从收容所领养了一只{a}，取名叫{b}，它特别怕{c}。",
            "来认识一下{b}，我家新来的{a}，一听到{c}就躲起来。",
        ],
        replies: &["有宠物真好，恭喜你！", "{b}这个名字真可爱。"],
        questions: &["{me}家的{a}叫什么名字？", "{me}养的{a}害怕什么？"],
        keywords: "{me} {a} 名字",
        details: [
            "小猫 小狗 鹦鹉 兔子 乌龟",
            "饼干 月亮 辣椒 芒果 橄榄",
            "打雷 吸尘器 气球 雨伞 门铃",
        ],
    },
    Topic {
        facts: &[
            "我报名了{b}的{a}课，老师是{c}人。",
            "最近{b}都在学{a}，教我们的老师来自{c}。",
        ],
        replies: &["上课可以认识很多朋友。", "{b}我一般要加班，可惜了。"],
        questions: &["{me}的{a}课在星期几？", "教{me}{a}的老师是哪里人？"],
        keywords: "{me} {a} 老师",
        details: [
            "陶艺 小提琴 射箭 烘焙 素描 柔道",
            "星期一 星期二 星期三 星期四 星期六",
            "维也纳 哈尔滨 首尔 日内瓦 开罗",
        ],
    },
];

const CHINESE_SMALL_TALK: &[&str] = &[
    "你这个星期过得怎么样？",
    "最近太忙了，时间过得真快。",
    "听起来不错，快跟我说说！",
    "谢谢关心，我挺好的。",
    "周末打算做什么？",
    "昨晚没睡好，不过精神还可以。",
    "你怎么有时间做这么多事情？",
    "下次我们再一起去吧。",
    "先这样，回头再聊。",
    "最后你们决定了什么？",
];

/// A generator of pseudorandom numbers with a fixed sequence.
struct Noise(u64);

impl Noise {
    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        items[usize::try_from(self.0 % items.len() as u64).unwrap()]
    }
}

/// Returns the conversations. The sequence is always the same.
pub(crate) fn conversations() -> Vec<Conversation> {
    let english = [
        ["Caroline", "Mateo"],
        ["Ingrid", "Paul"],
        ["Nadia", "Tom"],
        ["Hugo", "Selma"],
        ["Grace", "Igor"],
    ];
    let chinese = [["小明", "李华"], ["王芳", "陈刚"], ["赵敏", "刘洋"]];
    let english = english
        .into_iter()
        .zip(1..)
        .map(|(names, seed)| generate(ENGLISH, ENGLISH_SMALL_TALK, names, 45, seed));
    let chinese = chinese
        .into_iter()
        .zip(101..)
        .map(|(names, seed)| generate(CHINESE, CHINESE_SMALL_TALK, names, 45, seed));
    english.chain(chinese).chain(chats(CHATS)).collect()
}

/// Returns conversations that were written after the search, to measure what it finds in other texts.
pub(crate) fn unseen_conversations() -> Vec<Conversation> {
    chats(UNSEEN_CHATS)
}

fn generate(
    topics: &[Topic],
    small_talk: &[&str],
    names: [&str; 2],
    facts: usize,
    seed: u64,
) -> Conversation {
    let colon = if names[0].is_ascii() { ": " } else { "：" };
    let mut noise = Noise(seed * 0x9e37_79b9 + 1);
    let mut conversation = Conversation {
        messages: Vec::new(),
        questions: Vec::new(),
    };
    let mut known = Vec::new();
    for number in 0..facts {
        let topic = &topics[number % topics.len()];
        let (me, you) = if noise.pick(&["a", "b"]) == "a" {
            (names[0], names[1])
        } else {
            (names[1], names[0])
        };
        let details = topic.details.map(|list| {
            let separator = if list.contains('|') { '|' } else { ' ' };
            noise
                .pick(&list.split(separator).collect::<Vec<_>>())
                .to_owned()
        });
        // The same fact must not occur twice, or the evidence would be ambiguous.
        let key = (number % topics.len(), me, details.clone());
        if known.contains(&key) {
            continue;
        }
        known.push(key);
        let fill = |text: &str| {
            let text = text.replace("{me}", me).replace("{you}", you);
            let [a, b, c] = &details;
            text.replace("{a}", a).replace("{b}", b).replace("{c}", c)
        };
        let mut say = |name: &str, text: &str| {
            let count = conversation.messages.len();
            let date = format!(
                "2026-{:02}-{:02}T{:02}:{:02}:00+00:00",
                1 + number / 28 % 12,
                1 + number % 28,
                count % 24,
                count % 60
            );
            conversation
                .messages
                .push((date, format!("{name}{colon}{text}")));
            count
        };
        for name in [you, me] {
            say(name, noise.pick(small_talk));
        }
        let evidence = say(me, &fill(noise.pick(topic.facts)));
        say(you, &fill(noise.pick(topic.replies)));
        for name in [me, you] {
            say(name, noise.pick(small_talk));
        }
        conversation.questions.push(Question {
            text: fill(noise.pick(topic.questions)),
            keywords: fill(topic.keywords),
            evidence: vec![evidence],
        });
    }
    conversation
}

/// Conversations that were written by hand.
const CHATS: &str = include_str!("../data/recall_chats.txt");
/// Conversations that the search was not adjusted to.
const UNSEEN_CHATS: &str = include_str!("../data/recall_unseen.txt");
/// Number of messages without information after each session of a chat.
const CHAT_TALK: usize = 24;

const ENGLISH_CHAT_TALK: &[&str] = &[
    "That group of friends you have is such a support, I feel it whenever we talk.",
    "Work was long today, but the kids made me laugh when I came home.",
    "I love how you take the time for your family, it shows.",
    "Did you see the new place downtown? We should go there with the kids.",
    "Reading a good book in the evening is the best way to relax.",
    "It's important to have friends around who support you, no matter what.",
    "What a beautiful picture! When was that taken?",
    "I'm proud of you, you made a lot happen this year.",
    "Keep going, your dream is worth it. How did you get started?",
    "My mom always said that a school day is too short to learn it all.",
    "Music helps me to feel better when the day was hard.",
    "We had dinner at home and talked about our plans for the summer trip.",
    "The store was closed, so no new shoes for me this week.",
    "You're going to do a great job, trust me. What kind of help do you need?",
    "I painted the fence with the kids, more paint on us than on the wood.",
    "My dog wants a walk, I have to go in a minute!",
];
const CHINESE_CHAT_TALK: &[&str] = &[
    "有朋友支持的感觉真好，你说是不是？",
    "今天上班好累，不过孩子们一笑我就好了。",
    "周末想带家里人出去走走，你有什么推荐？",
    "睡前看一会儿书最放松了。",
    "这张照片真漂亮，什么时候拍的？",
    "为你高兴，今年你做成了好多事情。",
    "妈妈总说学校里学不到所有东西。",
    "心情不好的时候听听音乐就会好一点。",
    "晚上在家吃饭，聊了聊夏天旅行的计划。",
    "狗又在门口叫了，我得出去遛一圈。",
];

fn chats(text: &'static str) -> Vec<Conversation> {
    let mut chats: Vec<Conversation> = Vec::new();
    let (mut names, mut talk) = (Vec::new(), ENGLISH_CHAT_TALK);
    let (mut day, mut numbered, mut noise) = ("", Vec::new(), Noise(77));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(rest) = line.get(2..) else { continue };
        if line.starts_with('%') {
            names = rest.split(' ').skip(1).collect();
            talk = if rest.starts_with("zh") {
                CHINESE_CHAT_TALK
            } else {
                ENGLISH_CHAT_TALK
            };
            numbered.clear();
            chats.push(Conversation {
                messages: Vec::new(),
                questions: Vec::new(),
            });
            continue;
        }
        let chat = chats.last_mut().unwrap();
        if line.starts_with('@') {
            for index in 0..CHAT_TALK {
                let text = format!("{}: {}", names[index % 2], noise.pick(talk));
                let date = if day.is_empty() { rest } else { day };
                chat.messages.push((format!("{date}:00+00:00"), text));
            }
            day = rest;
        } else if line.starts_with('?') {
            let [text, keywords, evidence] = rest.split(" | ").collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let evidence = evidence
                .split(' ')
                .map(|number| numbered[number.parse::<usize>().unwrap() - 1]);
            chat.questions.push(Question {
                text: text.to_owned(),
                keywords: keywords.to_owned(),
                evidence: evidence.collect(),
            });
        } else {
            let text = line.split_once("] ").map_or(line, |(_, text)| text);
            if line.starts_with('[') {
                numbered.push(chat.messages.len());
            }
            chat.messages
                .push((format!("{day}:00+00:00"), text.to_owned()));
        }
    }
    chats
}
