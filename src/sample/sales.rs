//! What happened: orders with their lines, shipments, payments, returns and tickets, and the stories hidden in them.
//!
//! `docs/sample-data.md` tells the stories; a change here that breaks one fails its test.

use super::catalog::{
    self, AGENTS_PER_REGION, ALPS, Customer, IBERIA, KETTLE, NORDICS, PAYS_TWICE, PRODUCTS, Product,
    REPRESENTATIVES_PER_REGION,
};
use super::draw::Draw;
use super::table::{Cents, Day, Moment, Nullable, Table};

/// All orders.
const ORDERS: u32 = 32_000;
/// 2024 and 2025.
const DAYS: u32 = 731;
/// How often a day of the month is chosen, out of 150.
const SEASON: [u32; 12] = [80, 75, 85, 85, 90, 92, 84, 78, 95, 102, 140, 150];
/// 2025-04-01, from when the generous representative is generous.
const GENEROUS_FROM: Day = Day(456);
/// 2025-09-01, after which Iberia's large customers stay away.
const CHURN_FROM: Day = Day(609);
/// 2025-05-01, from when their tickets lie about.
const NEGLECT_FROM: Day = Day(486);

const CARRIERS: [&str; 4] = ["Northline", "Parcelo", "Swift Freight", "Blue Van"];
const REASONS: [&str; 5] = ["damaged", "wrong item", "changed mind", "too late", "defective"];
const SUBJECTS: [&str; 6] = [
    "Where is my order?",
    "Invoice question",
    "Change of address",
    "Missing part",
    "How to use it?",
    "Complaint",
];

/// The tables that time fills.
pub(super) struct Sales {
    orders: Table,
    items: Table,
    shipments: Table,
    payments: Table,
    returns: Table,
    tickets: Table,
}

struct Order {
    id: u32,
    customer_id: u32,
    region_id: u32,
    enterprise: bool,
    at: Moment,
    generous: bool,
}

impl Sales {
    pub(super) fn generate(draw: &mut Draw, products: &[Product], customers: &[Customer]) -> Self {
        let mut sales = Self {
            orders: Table::new("orders"),
            items: Table::new("order_items"),
            shipments: Table::new("shipments"),
            payments: Table::new("payments"),
            returns: Table::new("returns"),
            tickets: Table::new("support_tickets"),
        };
        for (index, at) in moments(draw).into_iter().enumerate() {
            let id = u32::try_from(index + 1).expect("few orders");
            sales.order(draw, products, customers, id, at);
        }
        sales
    }

    pub(super) fn into_tables(self) -> [Table; 6] {
        [self.orders, self.items, self.shipments, self.payments, self.returns, self.tickets]
    }

    fn order(&mut self, draw: &mut Draw, products: &[Product], customers: &[Customer], id: u32, at: Moment) {
        let customer_id = buyer(draw, customers, at);
        let customer = &customers[customer_id as usize - 1];
        let partner_per_mille = if at.day().year() == 2025 { 210 } else { 90 };
        let channel = match draw.below(1_000) {
            share if share < partner_per_mille => "partner",
            share if share < partner_per_mille + 180 => "phone",
            _ => "web",
        };
        let representative = (channel == "phone")
            .then(|| catalog::representative(customer.region_id, draw.below(REPRESENTATIVES_PER_REGION)));
        let generous = representative == Some(catalog::representative(2, 3)) && at.day() >= GENEROUS_FROM;
        let status = match draw.below(1_000) {
            _ if at.day().0 >= 728 => "processing",
            0..=29 => "cancelled",
            _ => "delivered",
        };
        self.orders.row(&[&id, &customer_id, &Nullable(representative), &channel, &status, &at]);
        let order = Order {
            id,
            customer_id,
            region_id: customer.region_id,
            enterprise: customer.enterprise,
            at,
            generous,
        };
        let delivered_at = (status == "delivered").then(|| self.ship(draw, &order));
        let total = self.lines(draw, products, &order, delivered_at);
        if status != "cancelled" {
            self.pay(draw, &order, total);
        }
        if draw.chance(125) {
            self.ticket(draw, &order);
        }
    }

    fn ship(&mut self, draw: &mut Draw, order: &Order) -> Moment {
        let carrier = draw.one_of(&CARRIERS);
        let shipped = order.at.plus_seconds(draw.between(8 * 3_600, 60 * 3_600));
        let mut hours = draw.between(20, 84);
        if draw.chance(30) {
            hours += draw.between(48, 144);
        }
        let day = order.at.day();
        if carrier == "Northline" && order.region_id == ALPS && (day.year(), day.month()) == (2025, 2) {
            hours += draw.between(168, 312);
        }
        let delivered = shipped.plus_seconds(hours * 3_600 + draw.below(3_600));
        self.shipments.row(&[
            &self.shipments.next_id(),
            &order.id,
            &carrier,
            &shipped,
            &day.plus(7),
            &delivered,
        ]);
        delivered
    }

    /// Gives the order's total.
    fn lines(
        &mut self,
        draw: &mut Draw,
        products: &[Product],
        order: &Order,
        delivered_at: Option<Moment>,
    ) -> Cents {
        let day = order.at.day();
        let kettle_weeks = (Day(653)..Day(690)).contains(&day) && order.region_id == NORDICS;
        let mut chosen: Vec<u32> = Vec::new();
        if kettle_weeks && draw.chance(300) {
            chosen.push(KETTLE);
        }
        for _ in 0..=draw.below(5).min(draw.below(5)) {
            // The many step is coprime to the count, so that the favourites are spread over all categories.
            let product = draw.skewed(PRODUCTS, 2) * 237 % PRODUCTS + 1;
            if !chosen.contains(&product) {
                chosen.push(product);
            }
        }
        let mut total = 0;
        for (line, product_id) in (1_u32..).zip(chosen) {
            let list = products[product_id as usize - 1].list_price;
            let quantity = if order.enterprise { draw.between(2, 30) } else { 1 + draw.skewed(4, 3) };
            let discount = discount(draw, order);
            let cents = list.0 * u64::from(quantity) * u64::from(100 - discount) / 100;
            total += cents;
            let id = self.items.next_id();
            self.items.row(&[&id, &order.id, &line, &product_id, &quantity, &list, &discount]);
            if let Some(delivered_at) = delivered_at {
                self.give_back(draw, id, (product_id, quantity, cents), delivered_at, kettle_weeks);
            }
        }
        Cents(total)
    }

    fn give_back(
        &mut self,
        draw: &mut Draw,
        item_id: u64,
        (product_id, quantity, cents): (u32, u32, u64),
        delivered_at: Moment,
        kettle_weeks: bool,
    ) {
        let leaks = kettle_weeks && product_id == KETTLE;
        if !draw.chance(if leaks { 480 } else { 38 }) {
            return;
        }
        let reason = if leaks { "leaks" } else { draw.one_of(&REASONS) };
        let returned = draw.between(1, quantity);
        let after = if leaks { draw.between(1, 6) } else { draw.between(2, 28) };
        let refund = Cents(cents * u64::from(returned) / u64::from(quantity));
        let on = delivered_at.day().plus(after);
        self.returns.row(&[&self.returns.next_id(), &item_id, &returned, &reason, &on, &refund]);
    }

    fn pay(&mut self, draw: &mut Draw, order: &Order, total: Cents) {
        let method =
            if order.enterprise { "transfer" } else { draw.one_of(&["card", "card", "wallet", "transfer"]) };
        let mut at = order.at.plus_seconds(draw.between(20, 900));
        if draw.chance(24) {
            self.payments.row(&[&self.payments.next_id(), &order.id, &method, &"failed", &total, &at]);
            at = at.plus_seconds(draw.between(60, 7_200));
        }
        self.payments.row(&[&self.payments.next_id(), &order.id, &method, &"captured", &total, &at]);
        if order.customer_id == PAYS_TWICE && draw.chance(700) {
            let again = at.plus_seconds(draw.between(40, 240));
            self.payments.row(&[&self.payments.next_id(), &order.id, &method, &"captured", &total, &again]);
        }
    }

    fn ticket(&mut self, draw: &mut Draw, order: &Order) {
        let neglected = order.enterprise && order.region_id == IBERIA && order.at.day() >= NEGLECT_FROM;
        let opened = order.at.plus_seconds(draw.between(3_600, 20 * 86_400));
        let hours = if neglected { draw.between(240, 620) } else { draw.between(1, 70) };
        let closed = opened.plus_seconds(hours * 3_600);
        let still_open = closed.day().0 >= 731;
        let score = if neglected { draw.between(1, 2) } else { 5 - draw.skewed(5, 3) };
        let satisfaction = (!still_open && (neglected || draw.chance(550))).then_some(score);
        let agent = catalog::agent(order.region_id, draw.below(AGENTS_PER_REGION));
        self.tickets.row(&[
            &self.tickets.next_id(),
            &order.customer_id,
            &order.id,
            &agent,
            &draw.one_of(&SUBJECTS),
            &draw.one_of(&["low", "normal", "normal", "normal", "high"]),
            &opened,
            &Nullable((!still_open).then_some(closed)),
            &Nullable(satisfaction),
        ]);
    }
}

/// When the orders come, in order: more each year, and most before the year's end.
fn moments(draw: &mut Draw) -> Vec<Moment> {
    let mut moments = Vec::new();
    while moments.len() < ORDERS as usize {
        let day = Day(i32::try_from(draw.below(DAYS)).expect("few days"));
        let season = SEASON[usize::from(day.month()) - 1];
        let year_per_mille = if day.year() == 2024 { 720 } else { 1_000 };
        if draw.below(150) < season && draw.chance(year_per_mille) {
            moments.push(Moment(i64::from(day.0) * 86_400 + i64::from(draw.between(6 * 3_600, 22 * 3_600))));
        }
    }
    moments.sort_unstable();
    moments
}

/// A few customers buy often. Iberia's large ones buy no more from autumn 2025 on.
fn buyer(draw: &mut Draw, customers: &[Customer], at: Moment) -> u32 {
    if draw.below(ORDERS) < 40 {
        return PAYS_TWICE;
    }
    let known = catalog::customers_on(at.day());
    loop {
        // 1009 is coprime to the count: the frequent buyers are spread over all ages, as far as they are known.
        let id = draw.skewed(5_000, 2) * 1_009 % 5_000 + 1;
        let customer = &customers[id as usize - 1];
        let gone = customer.enterprise && customer.region_id == IBERIA && at.day() >= CHURN_FROM;
        if id <= known && !gone {
            return id;
        }
    }
}

fn discount(draw: &mut Draw, order: &Order) -> u32 {
    if order.generous {
        return draw.between(25, 35);
    }
    match draw.below(100) {
        0..=69 => 0,
        70..=85 => 5,
        86..=95 => 10,
        _ => 15,
    }
}
