// What RocketMQ's Node client of version 5 does: scenarios.js ENDPOINT PREFIX. Topics and groups are PREFIX and the name
// of the scenario. One line of "name=value" for each scenario.
'use strict';
const { Producer, PushConsumer, SimpleConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');

const [endpoints, prefix] = process.argv.slice(2);
const SQL92 = 2;
const COMMIT = 1;
const PATIENCE_MS = 90000;

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const show = found => `[${found.join(', ')}]`;

async function until(condition) {
  for (const end = Date.now() + PATIENCE_MS; !condition(); await pause(20)) {
    if (Date.now() > end) {
      throw new Error('not in time');
    }
  }
}

async function started(made) {
  await made.startup();
  return made;
}

const producer = (name, more) => started(new Producer({ endpoints, topic: prefix + name, ...more }));

const pushed = (name, filter, handle) => started(new PushConsumer({
  endpoints,
  consumerGroup: `${prefix}${name}-group`,
  subscriptions: new Map([[prefix + name, filter]]),
  messageListener: {
    consume: view => (handle(view.body.toString(), view) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE),
  },
}));

const received = (name, filter) => started(new SimpleConsumer({
  endpoints,
  consumerGroup: `${prefix}${name}-group`,
  subscriptions: new Map([[prefix + name, filter]]),
  awaitDuration: 5000,
}));

const message = (name, body, more) => ({ topic: prefix + name, body: Buffer.from(String(body)), ...more });

async function stop(...clients) {
  for (const each of clients) {
    await each.shutdown();
  }
}

async function push() {
  const got = [];
  const from = await producer('push');
  const to = await pushed('push', new FilterExpression('a || b'), (body, view) => {
    got.push(`${body}${view.tag}[${view.keys[0]}]{p=${view.properties.get('p')}}`);
    return true;
  });
  for (let at = 0; at < 6; at++) {
    await from.send(message('push', at, { tag: 'abc'[at % 3], keys: [`k${at}`], properties: new Map([['p', 'v']]) }));
  }
  await until(() => got.length >= 4);
  await pause(500);
  await stop(from, to);
  return show(got.sort());
}

async function timed() {
  let late;
  const due = Date.now() + 3000;
  const from = await producer('timed');
  const to = await pushed('timed', FilterExpression.SUB_ALL, () => {
    late = Date.now() - due;
    return true;
  });
  await from.send(message('timed', 'later', { deliveryTimestamp: new Date(due) }));
  await until(() => late !== undefined);
  await stop(from, to);
  return late > -1100 ? 'not early' : `early by ${-late}`;
}

async function recall() {
  const from = await producer('recall');
  const to = await received('recall', FilterExpression.SUB_ALL);
  const deliveryTimestamp = new Date(Date.now() + 10000);
  await from.send(message('recall', 'kept', { deliveryTimestamp }));
  const gone = await from.send(message('recall', 'gone', { deliveryTimestamp }));
  const receipt = await from.recallMessage(`${prefix}recall`, gone.recallHandle);
  const got = [];
  for (let tries = 0; tries < 18 && !got.length; tries++) {
    for (const view of await to.receive(16, 30000)) {
      got.push(view.body.toString());
      await to.ack(view);
    }
  }
  await stop(from, to);
  return `${show(got)} recalled ${receipt.messageId === gone.messageId}`;
}

async function transaction() {
  const got = new Set();
  const asked = new Set();
  const checker = {
    check: async view => {
      asked.add(view.body.toString());
      return COMMIT;
    },
  };
  const from = await producer('transaction', { checker });
  const to = await pushed('transaction', FilterExpression.SUB_ALL, body => got.add(body));
  const begun = async body => {
    const made = from.beginTransaction();
    await from.send(message('transaction', body), made);
    return made;
  };
  await (await begun('committed')).commit();
  await (await begun('rolled back')).rollback();
  await begun('asked');
  await until(() => got.size >= 2);
  await stop(from, to);
  return `${show([...got].sort())} asked ${show([...asked])}`;
}

async function simple() {
  const from = await producer('simple');
  const to = await received('simple', new FilterExpression('amount > 2', SQL92));
  for (let at = 0; at < 5; at++) {
    await from.send(message('simple', at, { properties: new Map([['amount', String(at)]]) }));
  }
  const got = [];
  for (const end = Date.now() + PATIENCE_MS; got.length < 3 && Date.now() < end;) {
    for (const view of await to.receive(16, 30000)) {
      got.push(`${view.body}/${view.deliveryAttempt}`);
      if (String(view.body) === '3' && view.deliveryAttempt === 1) {
        await to.changeInvisibleDuration(view, 1000);
      } else {
        await to.ack(view);
      }
    }
  }
  await stop(from, to);
  return show(got.sort());
}

async function dead() {
  const got = [];
  const from = await producer('dead');
  const to = await pushed('dead', FilterExpression.SUB_ALL, (_, view) => {
    got.push(view.deliveryAttempt);
    return false;
  });
  await from.send(message('dead', 'bad'));
  await until(() => got.length >= 2);
  await pause(3000);
  await stop(from, to);
  return show(got);
}

async function main() {
  const scenarios = { push, timed, recall, transaction, simple, dead };
  await Promise.all(Object.entries(scenarios).map(async ([name, scenario]) => {
    let result;
    try {
      result = await scenario();
    } catch (error) {
      console.error(error);
      result = `failed: ${error.message}`;
    }
    console.log(`${name}=${result}`);
  }));
}

main().then(() => process.exit());
